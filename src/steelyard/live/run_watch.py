"""Follows a run for its planner: which samples have ended, and how long its steps take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from steelyard.balance.core import Core
from steelyard.balance.events import Aborted, Begun, Ended, PartTrained, StepTrained, WeightsPublished
from steelyard.balance.kinds import Event
from steelyard.posttrain.batches import BatchShape, EndedSample, Recent, WholeBatches
from steelyard.records import Trajectory


@dataclass(frozen=True, slots=True)
class LiveSample:
    """A sample that has ended."""

    trajectory: Trajectory
    begun: float
    ended: float
    version: int  # of the weights that it began with: samples of a round have the same


@dataclass(frozen=True)
class MeasuredStep:
    """Seconds of a step: of its training, and from the end of the step before."""

    train: float
    whole: float


class RunWatch:
    """Call `before` with every event before it is decided, and `training_begins` with every order to train.

    A controller that was restarted knows the samples since its snapshot. It plans again once a batch has ended since.
    """

    def __init__(self, shape: BatchShape) -> None:
        self._batches = WholeBatches(shape, _round_of)
        self._begun: dict[str, float] = {}
        self._part_began = 0.0
        self._trained: dict[int, float] = {}  # seconds of training, by step
        self._synced: dict[int, float] = {}  # when engines had the weights of each step; of -1: the first weights

    def before(self, event: Event, core: Core) -> None:
        """Note an event, if the core is about to count it."""
        rollouts = core.placement.rollouts
        match event:
            case Begun() if rollouts.accepts(event) is None:
                self._begun.setdefault(event.trajectory, event.at)
            case Ended() if rollouts.accepts(event) is None:
                self._end(event, core)
            case Aborted():
                self._begun.pop(event.trajectory, None)
            case PartTrained() | StepTrained() if event.step == core.trained + 1:
                spent = event.at - self._part_began
                self._trained[event.step] = self._trained.get(event.step, 0.0) + max(0.0, spent)
                self._part_began = event.at
            case WeightsPublished() if event.version == core.published + 1:
                self._synced[event.version - 1] = event.at

    def training_begins(self, at: float) -> None:
        """The trainer has an order. It begins with it once it is done with the one before."""
        self._part_began = max(self._part_began, at)

    def times(self, step: int) -> MeasuredStep | None:
        """Of a step; None if it was not followed from its beginning."""
        if step not in self._trained or not {step, step - 1} <= self._synced.keys():
            return None
        return MeasuredStep(self._trained[step], self._synced[step] - self._synced[step - 1])

    def latest(self, step: int, core: Core) -> Recent | None:
        """The newest whole batches after a step, and how long and how full the rollout was."""
        ends = [step]
        while ends[0] - 1 in self._synced:
            ends.insert(0, ends[0] - 1)
        if len(ends) < 2:
            return None
        rollouts = core.placement.rollouts
        running = {float(each.version) for each in rollouts.running.values()}
        seats = sum(each.seats for each in rollouts.replicas.values())
        first = self._synced[ends[0]]
        return self._batches.latest(step, running, max(1, seats), [self._synced[each] - first for each in ends[1:]])

    def _end(self, event: Ended, core: Core) -> None:
        running = core.placement.rollouts.running[event.trajectory]
        begun = self._begun.pop(event.trajectory, None)
        if begun is None:
            return
        history = running.history
        turns = tuple(replace(turn, generated=max(1, turn.generated)) for turn in (*history.turns, event.turn))
        known = Trajectory(event.trajectory, history.prompt, history.prompt, turns, max(1, history.prompt_tokens))
        self._batches.end(LiveSample(known, begun, event.at, running.version))


def _round_of(sample: EndedSample) -> float:
    assert isinstance(sample, LiveSample)
    return float(sample.version)
