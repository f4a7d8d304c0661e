"""What a pool is told about each step, from the events of a run alone, so that the next controller finds the same."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from steelyard.balance.commands import Start, TrainOn
from steelyard.balance.events import Aborted, Begun, Ended, PartTrained, Returned, StepTrained, WeightsPublished
from steelyard.balance.kinds import Command, Event
from steelyard.balance.pool import StepBegan, StepEnded
from steelyard.balance.rollouts import Replica
from steelyard.balance.settings import CoreSettings
from steelyard.posttrain.recent import BatchTimes
from steelyard.records import Trajectory, Turn

TrainWith = Callable[[np.ndarray], tuple[tuple[int, float], ...]]
"""Seconds of training on samples of these lengths, by number of replicas; empty if nobody knows."""

_STARTS = 64  # commands to start samples that are remembered; far more than run at a time


@dataclass
class _Sample:
    """A trajectory: the command that it was started by, and what is known of it."""

    start: int
    first: Begun
    turns: list[Turn] = field(default_factory=list)
    ended: float = 0.0

    @property
    def begun(self) -> float:
        return self.first.at

    @property
    def trajectory(self) -> Trajectory:
        first = self.first
        return Trajectory(first.trajectory, first.prompt, first.prompt, tuple(self.turns), first.prompt_tokens)


class StepMeasure:
    """Follows a run event by event."""

    def __init__(self, settings: CoreSettings, train_with: TrainWith) -> None:
        rounds = settings.rounds
        self._tokens = {tp: speed.decode[0][1] for tp, speed in settings.speeds}  # seconds of a token, alone
        self._train_with = train_with
        self._batches: BatchTimes[_Sample] = BatchTimes(
            rounds.groups, rounds.size, rounds.staleness, lambda sample: sample.start
        )
        self._running: dict[str, _Sample] = {}
        self._start_of: dict[str, int] = {}  # by group: the last command that started samples of it
        self._left: dict[int, int] = {}  # by such a command: samples that have not ended
        self._starts = 0
        self._published: list[float] = []  # when engines had each version
        self._training: float | None = None  # since when the present part is trained on
        self._trained = 0.0  # seconds of the present step so far

    def take(self, event: Event, commands: Sequence[Command]) -> None:
        """An event, and what was decided."""
        match event:
            case Begun() if event.trajectory not in self._running:
                self._running[event.trajectory] = _Sample(self._start_of.get(event.group, 0), event)
            case Returned() if event.trajectory in self._running:
                self._running[event.trajectory].turns.append(event.turn)
            case Ended() if event.trajectory in self._running:
                self._end(self._running[event.trajectory], event)
            case Aborted():
                self._forget(event.trajectory)
            case WeightsPublished() if event.version == len(self._published):
                self._published.append(event.at)
            case StepBegan():  # once more if the trainer was started anew, and trains the whole step again
                self._training, self._trained = event.at, 0.0
            case PartTrained() | StepTrained() if self._training is not None:
                self._trained += event.at - self._training
                self._training = None
        for command in commands:
            if isinstance(command, Start):
                self._start(command)
            elif isinstance(command, TrainOn) and command.part:  # the first part begins at the barrier
                self._training = event.at

    def step_over(self, at: float, step: int, replicas: Collection[Replica]) -> StepEnded | None:
        """Engines, of which these are up, have the weights of a step. None if no batch has ended yet."""
        zero, *before = self._published
        synced = [each - zero for each in [*before, at]]
        running = [start for start, left in self._left.items() if left > 0]
        recent = self._batches.latest(step, running, synced, max(1, sum(each.seats for each in replicas)))
        if recent is None:
            return None
        fastest = min((self._tokens[each.tp] for each in replicas), default=0.0)
        return StepEnded(
            at,
            step,
            self._trained,
            recent.seconds,
            at - self._published[-1],
            min(1.0, recent.wanted),
            recent.longest(fastest),
            self._train_with(recent.measured(0).context),
        )

    def _start(self, command: Start) -> None:
        self._starts += 1
        self._left[self._starts] = len(command.groups) * command.samples
        self._start_of |= dict.fromkeys(command.groups, self._starts)
        if len(self._left) > _STARTS:
            oldest = min(self._left)
            del self._left[oldest]
            self._start_of = {group: start for group, start in self._start_of.items() if start != oldest}

    def _end(self, sample: _Sample, event: Ended) -> None:
        sample.turns.append(event.turn)
        sample.ended = event.at
        self._forget(event.trajectory)
        if sample.trajectory.generated > 0:
            self._batches.end(sample)

    def _forget(self, name: str) -> None:
        sample = self._running.pop(name, None)
        if sample is not None and sample.start in self._left:
            self._left[sample.start] -= 1
