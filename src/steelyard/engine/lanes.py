"""Scheduling of a pipeline: a request's tokens are as many turns apart as there are stages.

So turns fall into *lanes*, one per stage: a request decodes in every turn of its lane and in no other, until it has to
wait or is preempted. The decodes of a lane are a group like those of an engine without stages.
"""

from __future__ import annotations

from collections import deque

from steelyard.engine.batch import Batch
from steelyard.engine.content import BlockNames
from steelyard.engine.group import DecodeGroup
from steelyard.engine.limits import Limits
from steelyard.engine.request import Request
from steelyard.engine.scheduler import Scheduler


class PipelineLane(DecodeGroup):
    """The decodes of one lane. Callers pass turns of the engine; the lane counts its own."""

    __slots__ = ("number", "stages")

    def __init__(self, block_size: int, number: int, stages: int) -> None:
        super().__init__(block_size)
        self.number = number
        self.stages = stages

    def _own(self, turn: int) -> int:
        """The lane's count at its first turn from ``turn`` on."""
        return -((self.number - turn) // self.stages)

    def due(self, step: int) -> int:
        """Blocks that members need in a turn."""
        return super().due(self._own(step))

    def join(self, r: Request, step: int) -> None:
        """Add a request whose tokens are all computed; ``step`` is the next turn."""
        super().join(r, self._own(step))

    def longest(self, step: int) -> int:
        """Computed tokens of the longest member before a turn; there must be one."""
        return super().longest(self._own(step))

    def leave_ended(self, step: int) -> list[Request]:
        """Remove and return members whose last turn is before this one."""
        return super().leave_ended(self._own(step))

    def dissolve(self, step: int) -> list[Request]:
        """Remove and return all members, to be scheduled one by one."""
        return super().dissolve(self._own(step))

    def _remove(self, r: Request, step: int) -> None:
        super()._remove(r, step)
        r.last = (step - 1) * self.stages + self.number


class LaneScheduler(Scheduler):
    """vLLM's scheduler with several batches in flight: ``flights``, oldest first."""

    def __init__(self, limits: Limits, names: BlockNames, *, plain: bool = False) -> None:
        super().__init__(limits, names, plain=plain or limits.slides)  # windows have groups of one lane only
        self.flights: deque[Batch] = deque()
        self.lanes = [PipelineLane(limits.block_size, number, limits.stages) for number in range(limits.stages)]
        for lane in self.lanes:
            lane.width = len(limits.windows)
        self.group = self.lanes[0]

    def only_decodes(self) -> bool:
        """Never: the next turn belongs to another lane."""
        return False

    def schedule(self, step: int, now: float, flight: Batch | None) -> Batch:
        """Schedule the next turn; its batch may be empty."""
        self.group = group = self.lanes[step % len(self.lanes)]
        if not group.size and any(lane.size for lane in self.lanes) and not self._group_fits(step, 0):
            self.ungroup(step, flight)  # a request of another lane may be preempted
        return super().schedule(step, now, flight)

    def ungroup(self, step: int, flight: Batch | None) -> None:
        """Schedule requests one by one again; ``step`` is the next turn."""
        members: list[Request] = []
        for lane in self.lanes:
            own = lane.dissolve(step)
            last = self._last_of(lane)
            members += own
            if last is not None:
                self.await_last_token(own, last)
                continue
            for r in own:
                r.outputs = r.computed + 1 - r.prompt
                self.kv.complete(r, r.computed)
        if not members:
            return
        for r in members:
            r.in_flight = 0
        gone = set(members)
        for batch in self.flights:  # chunks of their prompts may be among them
            for entry in batch.entries:
                if entry.request in gone:
                    entry.request.in_flight += entry.tokens
        self.singles = dict.fromkeys(r for r in self.running if not r.grouped)

    def _last_of(self, lane: PipelineLane) -> Batch | None:
        """The newest batch of a lane, if it is in flight."""
        own = (batch for batch in reversed(self.flights) if batch.step % lane.stages == lane.number)
        return next(own, None)

    def await_last_token(self, leavers: list[Request], flight: Batch) -> None:
        """Requests that left their lane have one token in flight, which the batch's result delivers."""
        super().await_last_token(leavers, flight)
        for r in leavers:
            if self.limits.async_scheduling:
                r.eligible = flight.step + self.limits.stages
            else:
                r.owed = 0
                self.kv.complete(r, r.computed)
