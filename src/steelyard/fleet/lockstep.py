"""Data-parallel ranks of one engine, which step together.

Each rank has its own scheduler, KV cache and requests, and is an engine to the fleet. The experts of every layer
process the tokens of all ranks. So, as in vLLM, all ranks run each step together: their hosts synchronise before it,
the slowest rank determines its time, and a rank without work runs a dummy batch.
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
# Of a rank's step time alone, as a lower bound. With other ranks a step takes longer, up to errors of measured tables.
_LOWER_BOUND_SHARE = 0.9


class LockstepCost(StepCost, Protocol):
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
    """One rank. Running one up to a second runs all of them."""

    lockstep: LockStep

    def submit(self, r: Request, at: float, abort_at: float = inf) -> None:
        """Submit a request. Wakes all ranks if they are idle."""
        running, clock = self.lockstep.running, self.clock
        super().submit(r, at, abort_at)
        if running:
            self.clock = clock
        else:
            self.lockstep.wake(self.clock)

    def advance(self, until: float, pause_after: int = _NEVER) -> None:
        """Run all ranks up to ``until``, or until ``pause_after`` requests of one have ended."""
        self.lockstep.advance(until, 1 if self.reactive else pause_after)

    def next_end_bound(self) -> float:
        """No request of this rank ends before this second, if nothing is submitted to any."""
        if not self.outstanding or not self.lockstep.running:
            return inf
        begins = max(rank.clock for rank in self.lockstep.ranks)  # the next step
        clock = decides = begins if self in self.lockstep.decided else self.clock  # sees who has ended
        steps = self.decodes_ahead()
        if steps > 1:
            clock = max(begins, self.gpu_free + _LOWER_BOUND_SHARE * steps * self.lockstep.alone(self))
        if self.aborts:
            clock = min(clock, max(decides, self.aborts[0][0]))
        return nextafter(clock, inf)

    def decodes_ahead(self) -> int:
        """Number of coming steps that decode one token for each of its requests and do nothing else."""
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
        """Its batch in the next such step: decodes, their cached tokens after it, and the longest one's."""
        group = self.scheduler.group
        return group.size, group.tokens + group.size, group.longest(self.step) + 1

    def ran_decodes(self, ends: array[float], late: float, clock: float) -> None:
        """Such steps have run and ended at ``ends``. ``late`` is when the first was launched, which may delay the
        result of the step before."""
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
        """Such steps have run with dummy batches on this rank."""
        self.clock, self.gpu_free = launched, ends[-1]

    @property
    def next_abort(self) -> float:
        """When the next client gives up."""
        return self.aborts[0][0] if self.aborts else inf

    @property
    def active(self) -> bool:
        """Whether it has a request, or a step on the GPU."""
        return self.flight is not None or (self.outstanding > 0 and not self.stuck)

    @property
    def pauses_all(self) -> bool:
        """Whether no rank goes on until the driver has collected what this one reports."""
        return bool(self.to_load) or (self.reactive and bool(self.finished))

    def decide(self) -> Batch | None:
        """The rank's batch in the next step; None for a dummy batch."""
        if self.aborts and self.aborts[0][0] <= self.clock:
            self._abort_due()
        return decide(self) if self.active else None

    def run(self, batch: Batch | None, clock: float, time: StepTime, delay: float) -> None:
        """Run a step that all hosts have reached by ``clock``."""
        self.clock = clock
        if batch is not None:
            run_step(self, batch, time, delay)
            return
        launched = clock + delay + time.prepare + time.launch
        self.gpu_free = max(max(self.gpu_free, clock + delay + time.prepare) + time.gpu, launched + time.tail)
        self.clock = launched if self.limits.async_scheduling else self.gpu_free

    def delay(self, batch: Batch | None) -> float:
        """Seconds by which its host delays the step."""
        return 0.0 if batch is None else delay_of(self, batch)


class LockStep:
    """The ranks of one engine."""

    def __init__(self, ranks: Sequence[Rank], cost: LockstepCost) -> None:
        self.ranks = ranks
        self.cost = cost
        self.decided: dict[Rank, Batch | None] = {}  # for the next step, by the ranks that have decided so far
        for rank in ranks:
            rank.lockstep = self

    @property
    def running(self) -> bool:
        """Whether any rank is active, so that all of them step."""
        return bool(self.decided) or any(rank.active for rank in self.ranks)

    def wake(self, clock: float) -> None:
        """No rank decides again before this second."""
        for rank in self.ranks:
            rank.clock = max(rank.clock, clock)

    def advance(self, until: float, pause: int) -> None:
        """Decide and run steps. Each rank decides at its own clock."""
        ranks, decided = self.ranks, self.decided
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
        """Seconds of a rank's next decode step if all others were idle."""
        line = self.cost.decodes_together([rank.decodes() if other is rank else None for other in self.ranks])
        return line.a + line.b * line.kv

    def _step(self) -> None:
        batches = [self.decided[rank] for rank in self.ranks]
        self.decided.clear()
        if all(batch is None for batch in batches):
            self.wake(max(rank.clock for rank in self.ranks))  # a rank without work waits for the others all the same
            return
        ranks = [None if b is None else RankBatch(b.decodes, b.kv, b.longest, b.chunks) for b in batches]
        time = self.cost.together(ranks)
        clock = max(rank.clock for rank in self.ranks)
        delay = max(rank.delay(batch) for rank, batch in zip(self.ranks, batches, strict=True))
        for rank, batch in zip(self.ranks, batches, strict=True):
            rank.run(batch, clock, time, delay)

    def _stretch(self, until: float) -> None:
        """Run decode-only steps up to the next change on any rank; none if the next step is not decode-only."""
        busy = [rank for rank in self.ranks if rank.active]
        count = min((rank.decodes_ahead() for rank in busy), default=0)
        if count < 2 or any(rank.outstanding for rank in self.ranks if not rank.active):
            return
        clock, end = max(rank.clock for rank in self.ranks), max(rank.gpu_free for rank in self.ranks)
        until = min(until, *(rank.next_abort for rank in busy))
        ranks = [rank.decodes() if rank.active else None for rank in self.ranks]
        line = self.cost.decodes_together(ranks)
        prepare, launch, tail = self.cost.decodes_host([each and each[0] for each in ranks])
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
                    self.decided[rank] = None


def step_together(engines: Sequence[Engine], dp: int, cost: LockstepCost) -> None:
    """Group the ranks of each engine of a pool, ``dp`` at a time. Engines of one rank stay as they are."""
    ranks = [engine for engine in engines if isinstance(engine, Rank)]
    for first in range(0, len(ranks), dp):
        LockStep(ranks[first : first + dp], cost)


def ranks_of(engines: Sequence[Engine]) -> list[list[tuple[int, Rank]]]:
    """By engine: the ranks that run when it runs, with their numbers; none for engines that run alone."""
    numbers = {engine: number for number, engine in enumerate(engines)}
    return [
        [(numbers[rank], rank) for rank in engine.lockstep.ranks] if isinstance(engine, Rank) else []
        for engine in engines
    ]
