"""Recent measurements of a loop: whole batches that have ended, and the rollout's time and load."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

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


class EndedBatches:
    """Watches a loop's trajectories end, and keeps those of the newest batches."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._asked = loop.setup.scenario.trajectories
        self._size = self._asked.prompts * self._asked.group
        self._staleness_bound = loop.setup.scenario.staleness_bound
        self._ended: dict[float, list[Attempt]] = defaultdict(list)  # by when they began
        self._together: Counter[float] = Counter()  # how many began then and have ended
        self._last: deque[Attempt] = deque(maxlen=self._size)
        loop.record.watchers.append(self._end)

    def latest(self, step: StepRecord) -> Recent | None:
        """Batches whose trajectories have all ended; if none is complete when it should be, the last that ended.

        None if there is neither. A part of a batch would mislead, since short trajectories end first.
        """
        found = self._whole()
        if not found and step.step >= self._staleness_bound:
            found = [list(self._last)]
        return self._recent(found) if found else None

    def _end(self, attempt: Attempt) -> None:
        self._ended[attempt.begun].append(attempt)
        self._together[attempt.begun] += 1
        self._last.append(attempt)

    def _whole(self) -> list[list[Attempt]]:
        """The newest whole batches. Older ones, and such as never will be whole, are dropped."""
        size, found = self._size, list[list[Attempt]]()
        running = {attempt.begun for attempt in self._loop.stage.running.values()}
        kept: dict[float, list[Attempt]] = defaultdict(list)
        for at in sorted(self._ended, reverse=True):
            if len(found) >= _BATCHES:
                break
            ended = self._ended[at]
            if at in running or len(ended) >= size:
                kept[at] = ended
            if at not in running and len(ended) >= size:
                known = sorted(ended, key=lambda attempt: attempt.trajectory.prompt)
                found += [known[first : first + size] for first in range(0, len(known) - size + 1, size)]
        self._ended = kept
        needed = running | kept.keys() | {attempt.begun for attempt in self._last}
        self._together = Counter({at: count for at, count in self._together.items() if at in needed})
        return found[:_BATCHES]

    def _recent(self, batches: list[list[Attempt]]) -> Recent:
        newest, stage = batches[0], self._loop.stage
        together = self._together[newest[0].begun]
        spent = max(attempt.ended for attempt in newest) - min(attempt.begun for attempt in newest)
        trajectories = [[attempt.trajectory for attempt in batch] for batch in batches]
        tools = float(Measured.of(trajectories[0]).tools.sum())
        seats = sum(self._loop.setup.kinds[tp].limits.max_num_seqs for tp in stage.tp.values())
        waited = sum(attempt.ended - attempt.begun for attempt in newest) - tools
        steps = self._loop.record.steps[-2 - self._staleness_bound :]  # the longest time that a batch takes
        a_step = (steps[-1].synced - steps[0].synced) / (len(steps) - 1) if len(steps) > 1 else steps[0].synced
        return Recent(
            trajectories,
            self._asked.group,
            seconds=spent / max(1, self._staleness_bound, together / self._size),
            wanted=waited / (a_step * seats),
        )
