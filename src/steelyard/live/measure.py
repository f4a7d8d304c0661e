"""What a step of a live run took, from its events alone, so that the next controller finds the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from steelyard.balance.commands import Start, TrainOn
from steelyard.balance.events import Aborted, Begun, Ended, PartTrained, Returned, StepTrained, WeightsPublished
from steelyard.balance.kinds import Command, Event
from steelyard.balance.log import read_event
from steelyard.balance.pool import StepBegan
from steelyard.balance.rollouts import Replica
from steelyard.balance.rounds import RoundSettings
from steelyard.files.jsontext import json_row
from steelyard.live.controller import Controller
from steelyard.live.wire import command_of
from steelyard.posttrain.batches import BatchShape, Recent, WholeBatches
from steelyard.records import Trajectory, Turn

_MEASURED = (Start.__name__, TrainOn.__name__)
_ROUNDS = 64  # that are remembered; far more than run at a time


@dataclass
class _Sample:
    """A trajectory: the round that it began in, and what is known of it."""

    round: int
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


@dataclass(frozen=True)
class MeasuredStep:
    """The newest batches when a step is over, its seconds of training, and those since the step before."""

    recent: Recent
    train: float
    seconds: float


class StepMeasure:
    """Follows a run event by event. Begin with all that the store has, then call `take` with each event."""

    def __init__(self, rounds: RoundSettings) -> None:
        shape = BatchShape(rounds.groups * rounds.size, rounds.size, rounds.staleness)
        self._batches: WholeBatches[_Sample] = WholeBatches(shape, lambda sample: sample.round)
        self._running: dict[str, _Sample] = {}
        self._round_of: dict[str, int] = {}  # by group: the last round with samples of it
        self._left: dict[int, int] = {}  # by round: samples that have not ended
        self._rounds = 0
        self._batches_begun: dict[int, int] = {}  # the round of each batch
        self._published: list[float] = []  # when engines had each version
        self._training: float | None = None  # since when the present part is trained on
        self._trained = 0.0  # seconds of the present step so far

    def take(self, event: Event, commands: Sequence[Command]) -> None:
        """An event, and what was decided."""
        match event:
            case Begun() if event.trajectory not in self._running:
                self._running[event.trajectory] = _Sample(self._round_of.get(event.group, 0), event)
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
        starts = [command for command in commands if isinstance(command, Start)]
        if starts:
            self._begin_round(starts)
        for command in commands:
            if isinstance(command, TrainOn):  # with a pool, the first part begins at its barrier
                self._trained = self._trained if command.part else 0.0
                self._training = event.at

    def begin(self, controller: Controller) -> None:
        """Follow a run from its beginning, and from here on."""
        controller.flush()
        for _, line, commands in controller.store.rows():
            event = read_event(json_row(line, "store"), "store").event
            rows = [json_row(each, "store") for each in commands]
            self.take(event, [command_of(row) for row in rows if row["kind"] in _MEASURED])
        controller.watch = self.take

    def step_over(self, at: float, step: int, replicas: Collection[Replica]) -> MeasuredStep | None:
        """Engines, of which these are up, are about to have the weights of a step. None if no batch has ended yet."""
        zero, *before = self._published
        synced = [each - zero for each in [*before, at]]
        running = {float(number) for number, left in self._left.items() if left > 0}
        recent = self._batches.latest(step, running, max(1, sum(each.seats for each in replicas)), synced)
        return None if recent is None else MeasuredStep(recent, self._trained, at - self._published[-1])

    def _begin_round(self, starts: Sequence[Start]) -> None:
        """Batches that begin at the same moment are of one round."""
        new = [each.step for each in starts if each.step not in self._batches_begun]
        if new:
            self._rounds += 1
            self._left[self._rounds] = 0
            self._batches_begun |= dict.fromkeys(new, self._rounds)
        for each in starts:
            number = self._batches_begun[each.step]
            self._left[number] += len(each.groups) * each.samples
            self._round_of |= dict.fromkeys(each.groups, number)
        if len(self._left) > _ROUNDS:
            oldest = min(self._left)
            del self._left[oldest]
            self._round_of = {group: number for group, number in self._round_of.items() if number != oldest}
            self._batches_begun = {step: number for step, number in self._batches_begun.items() if number != oldest}

    def _end(self, sample: _Sample, event: Ended) -> None:
        sample.turns.append(event.turn)
        sample.ended = event.at
        self._forget(event.trajectory)
        if sample.trajectory.generated > 0:
            self._batches.end(sample)

    def _forget(self, name: str) -> None:
        sample = self._running.pop(name, None)
        if sample is not None and sample.round in self._left:
            self._left[sample.round] -= 1
