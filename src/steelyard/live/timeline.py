"""A log as Chrome trace events, for Perfetto (ui.perfetto.dev).

One process per replica, with the turns on it: a slice for each, with a phase while its cache moves there and one while
it generates or queues in the engine. One process for the run: training steps and weight syncs as slices, trajectories
that wait, run or are in tools as counters, and an instant for each change of roles.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.balance.commands import Place, TrainOn
from steelyard.balance.events import (
    Aborted,
    Called,
    Ended,
    Moved,
    PartTrained,
    Paused,
    ReplicaDown,
    ReplicaUp,
    Sent,
    StepTrained,
    TrainerReady,
    WeightsPublished,
)
from steelyard.balance.kinds import Command, Event
from steelyard.balance.plan.questions import ChangePlan
from steelyard.files.writing import replacing_text
from steelyard.posttrain.history import DecidedLog

_RUN, _FIRST_REPLICA = 1, 10  # processes; chosen
_TRAINING, _SYNC = 1, 2  # threads of the run

TraceEvent = dict[str, Any]


def write_timeline(log: DecidedLog, path: Path) -> None:
    """Write the timeline of a log, event by event. The file is there whole or not at all."""
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    with replacing_text(path) as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        separator = ""
        for event in timeline(log):
            file.write(separator + encode(event))
            separator = ",\n"
        file.write("\n]}\n")


def timeline(log: DecidedLog) -> Iterator[TraceEvent]:
    """The trace events of a log, in its order. A slice of the training job comes when it is over."""
    yield from _named(_RUN, "run", {_TRAINING: "training steps", _SYNC: "weight sync"})
    turns, training, counts = _TurnTracks(log), _TrainingTracks(), _Counts(log)
    at = 0.0
    for event, commands, dropped in log:
        if dropped is None:
            at = event.at
            yield from counts.before(at)
            yield from turns.take(event, commands)
            yield from training.take(event, commands)
            counts.take(turns.under_way)
    yield from turns.end(at)
    yield from counts.before(None)


@dataclass
class _Turn:
    """A turn under way."""

    replica: int
    moving: bool


class _TurnTracks:
    """The turns on replicas."""

    def __init__(self, log: DecidedLog) -> None:
        self._rollouts = log.core.placement.rollouts
        self._turns: dict[str, _Turn] = {}
        self._known: dict[int, int] = {}  # degrees of replicas that have a process

    def take(self, event: Event, commands: Sequence[Command]) -> Iterator[TraceEvent]:
        """What an event begins and ends."""
        at = event.at
        match event:
            case ReplicaUp() | ReplicaDown():
                yield from self._replica(event)
            case Moved():
                yield from self._arrive(event.trajectory, at)
            case Called() | Ended() | Paused() | Aborted() | Sent():
                yield from self._close(event.trajectory, at, type(event).__name__)
        for command in commands:
            if isinstance(command, Place):
                yield from self._close(command.trajectory, at, "lost")
                yield from self._open(command, at)

    @property
    def under_way(self) -> int:
        """Turns that are placed and not over."""
        return len(self._turns)

    def end(self, at: float) -> Iterator[TraceEvent]:
        """End what is still under way."""
        for name in list(self._turns):
            yield from self._close(name, at, "under way")

    def _replica(self, event: ReplicaUp | ReplicaDown) -> Iterator[TraceEvent]:
        number = event.replica
        for name in [name for name, turn in self._turns.items() if turn.replica == number]:
            yield from self._close(name, event.at, "lost")
        if isinstance(event, ReplicaUp) and self._known.get(number) != event.tp:
            self._known[number] = event.tp
            yield from _named(_FIRST_REPLICA + number, f"replica {number} (TP{event.tp})", {})
        what = "up" if isinstance(event, ReplicaUp) else "down"
        yield _instant(event.at, what, _FIRST_REPLICA + number, 0)

    def _open(self, command: Place, at: float) -> Iterator[TraceEvent]:
        trajectory = self._rollouts.running[command.trajectory]
        moving = trajectory.doing == "moving"
        self._turns[command.trajectory] = _Turn(command.replica, moving)
        about = {"turn": len(trajectory.history.turns), "context": trajectory.context, "source": command.source}
        yield self._slice("b", command.trajectory, command.trajectory, at) | {"args": about}
        yield self._slice("b", "moving" if moving else "generating", command.trajectory, at)

    def _arrive(self, name: str, at: float) -> Iterator[TraceEvent]:
        turn = self._turns.get(name)
        if turn is not None and turn.moving:
            turn.moving = False
            yield self._slice("e", "moving", name, at)
            yield self._slice("b", "generating", name, at)

    def _close(self, name: str, at: float, how: str) -> Iterator[TraceEvent]:
        turn = self._turns.get(name)
        if turn is None:
            return
        yield self._slice("e", "moving" if turn.moving else "generating", name, at)
        yield self._slice("e", name, name, at) | {"args": {"end": how.lower()}}
        del self._turns[name]

    def _slice(self, phase: str, name: str, trajectory: str, at: float) -> TraceEvent:
        process = _FIRST_REPLICA + self._turns[trajectory].replica
        same = {"cat": "turn", "id": trajectory, "pid": process, "tid": 0}
        return {"name": name, "ph": phase, "ts": _micros(at), **same}


class _TrainingTracks:
    """Training steps, weight syncs and changes of plan."""

    def __init__(self) -> None:
        self._wanted: float | None = None  # since when samples are waited for
        self._part: tuple[float, TrainOn] | None = None  # under way
        self._trained: float | None = None  # when weights were ready that engines do not have yet

    def take(self, event: Event, commands: Sequence[Command]) -> Iterator[TraceEvent]:
        """What an event ends and begins."""
        at = event.at
        match event:
            case TrainerReady():
                self._wanted = at
            case PartTrained() | StepTrained():
                yield from self._train(at)
                self._wanted = at if isinstance(event, PartTrained) else None
                self._trained = at if isinstance(event, StepTrained) else self._trained
            case WeightsPublished() if self._trained is not None:
                yield _whole(f"weights {event.version}", self._trained, at, _SYNC, {})
                self._trained = None
        for command in commands:
            if isinstance(command, TrainOn):
                if self._wanted is not None and at > self._wanted:
                    yield _whole("waiting for samples", self._wanted, at, _TRAINING, {"step": command.step})
                self._wanted, self._part = None, (at, command)
            elif isinstance(command, ChangePlan):
                yield _instant(at, f"plan: {command.plan}", _RUN, _TRAINING)

    def _train(self, at: float) -> Iterator[TraceEvent]:
        if self._part is not None:
            since, command = self._part
            part = "" if command.last and not command.part else f", part {command.part}"
            samples = {"samples": len(command.trajectories)}
            yield _whole(f"step {command.step}{part}", since, at, _TRAINING, samples)
            self._part = None


class _Counts:
    """Trajectories that wait, run and are in tools: a counter of each, once a second at which they have changed."""

    def __init__(self, log: DecidedLog) -> None:
        self._rollouts = log.core.placement.rollouts
        self._at = 0.0
        self._last: dict[str, int] = {}
        self._now: dict[str, int] = {}

    def before(self, at: float | None) -> Iterator[TraceEvent]:
        """The counts of the second before this one, if they have changed."""
        if at != self._at and self._now != self._last:
            yield {"name": "trajectories", "ph": "C", "ts": _micros(self._at), "pid": _RUN, "args": self._now}
            self._last = self._now
        self._at = self._at if at is None else at

    def take(self, running: int) -> None:
        """The counts now."""
        waiting = len(self._rollouts.waiting)
        others = len(self._rollouts.running) - waiting - running
        self._now = {"waiting": waiting, "running": running, "in tools": others}


def _named(process: int, name: str, threads: dict[int, str]) -> Iterator[TraceEvent]:
    yield {"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}
    yield {"name": "process_sort_index", "ph": "M", "pid": process, "args": {"sort_index": process}}
    for thread, label in threads.items():
        yield {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": label}}


def _whole(name: str, since: float, until: float, thread: int, args: dict[str, int]) -> TraceEvent:
    """A slice of the run that is over."""
    duration = _micros(until) - _micros(since)
    return {"name": name, "ph": "X", "ts": _micros(since), "dur": duration, "pid": _RUN, "tid": thread, "args": args}


def _instant(at: float, name: str, process: int, thread: int) -> TraceEvent:
    return {"name": name, "ph": "i", "s": "p", "ts": _micros(at), "pid": process, "tid": thread}


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 3)
