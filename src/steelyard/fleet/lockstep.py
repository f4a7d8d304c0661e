"""Data-parallel ranks of one engine, which step together.

Each rank has a scheduler, a cache and requests of its own, and looks to the fleet like an engine. But the experts of
every layer work on the tokens of all of them, so as vLLM does it no rank runs a step without the others: their hosts
meet before each one, the slowest rank governs its time, and a rank without work takes part with a dummy batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import inf, nextafter
from typing import Protocol

from steelyard.cost.compiled import DecodeLine, RankBatch
from steelyard.cost.step import StepTime
from steelyard.engine import Engine, Request, StepCost
from steelyard.engine.batch import Batch
from steelyard.engine.steps import decide, delay_of, run_step
from steelyard.engine.stretch import book

_NEVER = 1 << 60
_SURELY = 0.9  # of a step's time alone: with other ranks it takes longer, but for steps in tables of measured times


class TogetherCost(StepCost, Protocol):
    """How long a step of all ranks takes."""

    def together(self, batches: Sequence[RankBatch | None]) -> StepTime:
        """Each rank with its batch, or None for a dummy one."""
        ...

    def decodes_together(self, ranks: Sequence[tuple[int, int, int] | None]) -> DecodeLine:
        """Steps of nothing but decodes: (how many, their cached tokens, those of the longest), or None."""
        ...

    def decodes_host(self, decodes: Sequence[int | None]) -> tuple[float, float, float]:
        """The other parts of such a step: prepare, launch, tail."""
        ...


class Rank(Engine):
    """One rank. Whoever runs it up to a second runs all of them."""

    company: LockStep

    def submit(self, r: Request, at: float, abort_at: float = inf) -> None:
        """Hand over a request; ranks that run do not have to be woken."""
        running, clock = self.company.running, self.clock
        super().submit(r, at, abort_at)
        if running:
            self.clock = clock
        else:
            self.company.wake(self.clock)

    def advance(self, until: float, pause_after: int = _NEVER) -> None:
        """Take every decision of any rank that falls before ``until``, or until so many requests of one have ended."""
        self.company.advance(until, 1 if self.reactive else pause_after)

    def next_end_bound(self) -> float:
        """No request of this rank ends before this second, if nothing is submitted to any."""
        if not self.outstanding or not self.company.running:
            return inf
        clock = max(rank.clock for rank in self.company.ranks)
        steps = self.decodes_ahead()
        if steps > 1:
            clock = max(clock, self.gpu_free + _SURELY * steps * self.company.alone(self))
        if self.aborts:
            clock = min(clock, max(self.clock, self.aborts[0][0]))
        if not self.to_load and any(rank.to_load for rank in self.company.ranks):
            clock = nextafter(clock, inf)  # all wait until that is asked for, so whoever has it goes first
        return nextafter(clock, inf)

    def decodes_ahead(self) -> int:
        """Steps before the next that is anything but one token for each of its requests; 0 if that one is not."""
        scheduler, group, flight = self.scheduler, self.scheduler.group, self.flight
        if flight is None or flight.entries or self.late or not scheduler.only_decodes():
            return 0
        if self.first_uses is not None and self.first_uses.missing(group.size, decode_only=True):
            return 0
        steps = group.quiet(self.step, group.ends[0][0] + 1 - self.step)
        if group.blocks_needed(self.step, steps) > scheduler.kv.free:
            return group.steps_that_fit(self.step, scheduler.kv.free, steps)
        return steps

    def decodes(self) -> tuple[int, int, int]:
        """Its part in the next such step: how many, their cached tokens after it, and those of the longest."""
        group = self.scheduler.group
        return group.size, group.tokens + group.size, group.longest(self.step) + 1

    def ran_decodes(self, ends: array[float], late: float, clock: float) -> None:
        """Such steps have been run, by these ends; the first was launched ``late``, when the one before had ended."""
        first, begun, flight = self.step, self.clock, self.flight
        assert flight is not None
        if late > self.log.ends[-1]:
            self.log.ends[-1] = late
        self.log.ends.extend(ends)
        self.step += len(ends)
        self.clock, self.gpu_free = clock, ends[-1]
        book(self, first, len(ends), begun)
        flight.step, flight.end = self.step - 1, ends[-1]
        left = self.scheduler.group.leave_ended(self.step)
        if left:
            self.scheduler.await_last_token(left, flight)

    def ran_dummies(self, ends: array[float], launched: float) -> None:
        """The same with dummy batches."""
        self.clock, self.gpu_free = launched, ends[-1]

    @property
    def next_abort(self) -> float:
        """When the next client gives up."""
        return self.aborts[0][0] if self.aborts else inf

    @property
    def active(self) -> bool:
        """Whether it has anything to run or to wait for on the GPU."""
        return self.flight is not None or (self.outstanding > 0 and not self.stuck)

    def decide(self) -> Batch | None:
        """The rank's part in the next step, from what it knows at its clock; None if it has none."""
        if self.aborts and self.aborts[0][0] <= self.clock:
            self._abort_due()
        return decide(self) if self.active else None

    def run(self, batch: Batch | None, clock: float, time: StepTime, delay: float) -> None:
        """Take part in a step that all hosts have come to at ``clock``."""
        self.clock = clock
        if batch is not None:
            run_step(self, batch, time, delay)
            return
        launched = clock + delay + time.prepare + time.launch
        self.gpu_free = max(max(self.gpu_free, clock + delay + time.prepare) + time.gpu, launched + time.tail)
        self.clock = launched if self.limits.async_scheduling else self.gpu_free

    def delay(self, batch: Batch | None) -> float:
        """Seconds by which its host is late with the step."""
        return 0.0 if batch is None else delay_of(self, batch)


class LockStep:
    """The ranks of one engine."""

    def __init__(self, ranks: Sequence[Rank], cost: TogetherCost) -> None:
        self.ranks = ranks
        self.cost = cost
        self._decided: dict[Rank, Batch | None] = {}  # for the next step, by those ranks that have come so far
        for rank in ranks:
            rank.company = self

    @property
    def running(self) -> bool:
        """Whether any rank has something to do, so that all of them step."""
        return bool(self._decided) or any(rank.active for rank in self.ranks)

    def wake(self, clock: float) -> None:
        """All ranks were idle: they start together."""
        for rank in self.ranks:
            rank.clock = max(rank.clock, clock)

    def advance(self, until: float, pause: int) -> None:
        """Decide and run steps; ranks come to a decision at clocks of their own."""
        ranks, decided = self.ranks, self._decided
        while self.running and not any(len(rank.finished) >= pause or rank.to_load for rank in ranks):
            for rank in ranks:
                if rank not in decided and rank.clock < until:
                    decided[rank] = rank.decide()
            if len(decided) < len(ranks):
                return
            self._step()
            if not decided:
                self._stretch(until)

    def alone(self, rank: Rank) -> float:
        """Seconds of a rank's next decode step if no other had anything to do."""
        line = self.cost.decodes_together([rank.decodes() if other is rank else None for other in self.ranks])
        return line.a + line.b * line.kv

    def _step(self) -> None:
        batches = [self._decided[rank] for rank in self.ranks]
        self._decided.clear()
        if all(batch is None for batch in batches):
            return
        asked = [None if b is None else RankBatch(b.decodes, b.kv, b.longest, b.chunks) for b in batches]
        time = self.cost.together(asked)
        clock = max(rank.clock for rank in self.ranks)
        delay = max(rank.delay(batch) for rank, batch in zip(self.ranks, batches, strict=True))
        for rank, batch in zip(self.ranks, batches, strict=True):
            rank.run(batch, clock, time, delay)

    def _stretch(self, until: float) -> None:
        """Run steps of nothing but decodes up to the next change on any rank; none if the next is not one."""
        busy = [rank for rank in self.ranks if rank.active]
        count = min((rank.decodes_ahead() for rank in busy), default=0)
        if count < 2 or any(rank.outstanding for rank in self.ranks if not rank.active):
            return
        clock, end = max(rank.clock for rank in self.ranks), max(rank.gpu_free for rank in self.ranks)
        until = min(until, *(rank.next_abort for rank in busy))
        asked = [rank.decodes() if rank.active else None for rank in self.ranks]
        line = self.cost.decodes_together(asked)
        prepare, launch, tail = self.cost.decodes_host([each and each[0] for each in asked])
        count, kv, late, launched = min(count, line.steps), line.kv, clock, clock
        ends = array("d")
        while len(ends) < count and clock < until:
            begin, launched = clock + prepare, clock + (prepare + launch)
            clock = end
            if launched > end:  # the result of the step before waits for this one's launch
                clock = launched
                if ends:
                    ends[-1] = launched
                else:
                    late = launched
            end = max(max(end, begin) + (line.a + line.b * kv), launched + tail)
            ends.append(end)
            kv += line.n
        if not ends:
            return
        for rank in self.ranks:
            if rank in busy:
                rank.ran_decodes(ends, late, clock)
            else:
                rank.ran_dummies(ends, launched)
                if launched < until:
                    self._decided[rank] = None


def step_together(engines: Sequence[Engine], dp: int, cost: TogetherCost) -> None:
    """Join the ranks of each engine of a pool, ``dp`` at a time; nothing to do for engines of one rank."""
    ranks = [engine for engine in engines if isinstance(engine, Rank)]
    for first in range(0, len(ranks), dp):
        LockStep(ranks[first : first + dp], cost)
