"""Recent measurements of a loop: whole batches that have ended, and the rollout's time and load."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from steelyard.balance.plan import Measured
from steelyard.posttrain.attempt import Attempt
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.record import StepRecord
from steelyard.records import Trajectory

Batch = Sequence[Trajectory]
_BATCHES = 12  # recent batches that planners look at


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


class EndedSample(Protocol):
    """A trajectory that has ended."""

    @property
    def trajectory(self) -> Trajectory: ...

    @property
    def begun(self) -> float: ...

    @property
    def ended(self) -> float: ...


Sample = TypeVar("Sample", bound=EndedSample)


class BatchTimes(Generic[Sample]):
    """The newest batches of ``groups`` times ``group`` samples. Samples that began together have the same key, and
    later ones a higher key."""

    def __init__(self, groups: int, group: int, staleness_bound: int, key: Callable[[Sample], float]) -> None:
        self._group, self._size, self._staleness_bound, self._key = group, groups * group, staleness_bound, key
        self._ended: dict[float, list[Sample]] = defaultdict(list)
        self._together: Counter[float] = Counter()  # how many began then and have ended
        self._last: deque[Sample] = deque(maxlen=self._size)

    def end(self, sample: Sample) -> None:
        """A trajectory has ended."""
        key = self._key(sample)
        self._ended[key].append(sample)
        self._together[key] += 1
        self._last.append(sample)

    def latest(self, step: int, running: Collection[float], synced: Sequence[float], seats: int) -> Recent | None:
        """Batches whose trajectories have all ended; if none is complete when it should be, the last that ended.

        None if there is neither. A part of a batch would mislead, since short trajectories end first. ``running`` has
        the keys of those that run, ``synced`` when steps were over, the last one ``step``.
        """
        found = self._whole(set(running))
        if not found and step >= self._staleness_bound and self._last:
            found = [list(self._last)]
        return self._recent(found, synced[-2 - self._staleness_bound :], seats) if found else None

    def _whole(self, running: set[float]) -> list[list[Sample]]:
        """The newest whole batches. Older ones, and such as never will be whole, are dropped."""
        size, found = self._size, list[list[Sample]]()
        kept: dict[float, list[Sample]] = defaultdict(list)
        for at in sorted(self._ended, reverse=True):
            if len(found) >= _BATCHES:
                break
            ended = self._ended[at]
            if at in running or len(ended) >= size:
                kept[at] = ended
            if at not in running and len(ended) >= size:
                known = sorted(ended, key=lambda sample: sample.trajectory.prompt)
                found += [known[first : first + size] for first in range(0, len(known) - size + 1, size)]
        self._ended = kept
        needed = running | kept.keys() | {self._key(sample) for sample in self._last}
        self._together = Counter({at: count for at, count in self._together.items() if at in needed})
        return found[:_BATCHES]

    def _recent(self, batches: list[list[Sample]], synced: Sequence[float], seats: int) -> Recent:
        """``synced`` covers the longest time that a batch takes."""
        newest = batches[0]
        together = self._together[self._key(newest[0])]
        spent = max(sample.ended for sample in newest) - min(sample.begun for sample in newest)
        trajectories = [[sample.trajectory for sample in batch] for batch in batches]
        tools = float(Measured.of(trajectories[0]).tools.sum())
        waited = sum(sample.ended - sample.begun for sample in newest) - tools
        a_step = (synced[-1] - synced[0]) / (len(synced) - 1) if len(synced) > 1 else synced[0]
        return Recent(
            trajectories,
            self._group,
            seconds=spent / max(1, self._staleness_bound, together / self._size),
            wanted=waited / (a_step * seats),
        )


class EndedBatches:
    """Watches a loop's trajectories end, and keeps those of the newest batches."""

    def __init__(self, loop: Loop) -> None:
        self._loop, scenario = loop, loop.setup.scenario
        asked = scenario.trajectories
        self._times: BatchTimes[Attempt] = BatchTimes(
            asked.prompts, asked.group, scenario.staleness_bound, lambda attempt: attempt.begun
        )
        loop.record.watchers.append(self._times.end)

    def latest(self, step: StepRecord) -> Recent | None:
        """The newest batches when a step is over."""
        loop = self._loop
        running = {attempt.begun for attempt in loop.stage.running.values()}
        synced = [each.synced for each in loop.record.steps]
        seats = sum(loop.setup.kinds[tp].limits.max_num_seqs for tp in loop.stage.tp.values())
        return self._times.latest(step.step, running, synced, seats)
