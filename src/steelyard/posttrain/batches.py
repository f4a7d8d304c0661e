"""Whole batches of samples that have ended, simulated or live, with the rollout's time and load."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from steelyard.balance.plan import Measured
from steelyard.records import Trajectory

Batch = Sequence[Trajectory]
_BATCHES = 12  # recent batches that planners look at


class EndedSample(Protocol):
    """A trajectory that has ended, and when it began and ended."""

    @property
    def trajectory(self) -> Trajectory: ...

    @property
    def begun(self) -> float: ...

    @property
    def ended(self) -> float: ...


Sample = TypeVar("Sample", bound=EndedSample)


@dataclass(frozen=True)
class Recent:
    """The newest batches, newest first, each group by group."""

    batches: Sequence[Batch]
    group: int
    seconds: float  # rollout of a batch; its share if several run together
    wanted: float  # mean demand for seats, as a share of all seats

    def measured(self, place: int) -> Measured:
        """The columns of a batch for planners."""
        return Measured.of(self.batches[place], self.group)

    def longest(self, token: float) -> float:
        """Seconds of the longest trajectory of the newest batch alone, on an engine that takes ``token`` for each."""
        newest = self.measured(0)
        return float((newest.generated * token + newest.tools).max())


@dataclass(frozen=True)
class BatchShape:
    """Samples of a batch, samples of a group, and how many batches may roll out beside the one that is trained on."""

    size: int
    group: int
    staleness_bound: int


class WholeBatches(Generic[Sample]):
    """Keeps the samples of the newest batches. Batches that began together are of the same round, and later ones of a
    higher one; ``round_of`` tells it. A batch may begin group by group; the next one does not begin before that."""

    def __init__(self, shape: BatchShape, round_of: Callable[[Sample], float]) -> None:
        self._shape, self._round_of = shape, round_of
        self._ended: dict[float, list[Sample]] = defaultdict(list)  # by round
        self._together: Counter[float] = Counter()  # how many of a round have ended
        self._last: deque[Sample] = deque(maxlen=shape.size)

    def end(self, sample: Sample) -> None:
        """A sample has ended."""
        began = self._round_of(sample)
        self._ended[began].append(sample)
        self._together[began] += 1
        self._last.append(sample)

    def latest(self, step: int, running: AbstractSet[float], seats: int, synced: Sequence[float]) -> Recent | None:
        """Batches whose samples have all ended; if none is complete when it should be, the last that ended.

        ``running`` are the rounds of samples under way, ``synced`` the ends of the last steps. None if there is no
        batch. A part of a batch would mislead, since short samples end first.
        """
        found = self._whole(running)
        if not found and step >= self._shape.staleness_bound and self._last:
            found = [list(self._last)]
        return self._recent(found, seats, synced[-2 - self._shape.staleness_bound :]) if found else None

    def _whole(self, running: AbstractSet[float]) -> list[list[Sample]]:
        """The newest whole batches. Older ones, and such as never will be whole, are dropped."""
        size, found = self._shape.size, list[list[Sample]]()
        kept: dict[float, list[Sample]] = defaultdict(list)
        newest = max((*running, *self._ended), default=0.0)  # of which groups may not have begun
        for began in sorted(self._ended, reverse=True):
            if len(found) >= _BATCHES:
                break
            ended = self._ended[began]
            if began in running or began == newest or len(ended) >= size:
                kept[began] = ended
            if began not in running and len(ended) >= size:
                known = sorted(ended, key=lambda sample: sample.trajectory.prompt)
                found += [known[first : first + size] for first in range(0, len(known) - size + 1, size)]
        self._ended = kept
        needed = running | kept.keys() | {self._round_of(sample) for sample in self._last}
        self._together = Counter({began: count for began, count in self._together.items() if began in needed})
        return found[:_BATCHES]

    def _recent(self, batches: list[list[Sample]], seats: int, synced: Sequence[float]) -> Recent:
        """``synced`` covers the longest time that a batch takes."""
        shape, newest = self._shape, batches[0]
        together = self._together[self._round_of(newest[0])]
        spent = max(sample.ended for sample in newest) - min(sample.begun for sample in newest)
        trajectories = [[sample.trajectory for sample in batch] for batch in batches]
        tools = float(Measured.of(trajectories[0]).tools.sum())
        waited = sum(sample.ended - sample.begun for sample in newest) - tools
        a_step = (synced[-1] - synced[0]) / (len(synced) - 1) if len(synced) > 1 else synced[0]
        return Recent(
            trajectories,
            shape.group,
            seconds=spent / max(1, shape.staleness_bound, together / shape.size),
            wanted=waited / (a_step * seats),
        )
