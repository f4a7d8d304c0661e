"""Pipeline parallelism as in vLLM: layers are split into stages, with a batch in each of them.

vLLM keeps a queue of batches: one per stage, and one more with asynchronous scheduling. In every *turn* it schedules
what can run without the tokens in flight, which may be nothing, and appends it to the queue. Only when the queue is
full does it wait for the oldest batch. So a batch returns after as many turns as the queue is long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from steelyard.engine.batch import Batch
from steelyard.engine.content import BlockNames
from steelyard.engine.engine import Engine
from steelyard.engine.lanes import LaneScheduler
from steelyard.engine.limits import Limits
from steelyard.engine.observer import StepObserver, show_step
from steelyard.engine.request import Request
from steelyard.engine.step_cost import StepCost, time_of
from steelyard.engine.steps import PAUSE_SECONDS, complete, delay_of, next_batch, wait_or_refuse


class Stages:
    """Timing of a pipeline's stages; each has its own host and GPUs.

    A stage's host receives a batch when the previous stage has launched it. Its GPUs start when they have the previous
    stage's output. Sending is part of the sender's step.
    """

    def __init__(self, costs: Sequence[StepCost], rested: float) -> None:
        self.costs = costs
        self.rested = rested
        self.worked = 0.0  # seconds of all stages together
        self.occupied = 0.0  # seconds in which any stage had a batch
        self.restart(0.0)

    def restart(self, at: float) -> None:
        """All stages are free from ``at`` on."""
        self._host_free = [at] * len(self.costs)
        self._gpu_free = [at] * len(self.costs)

    def run(self, batch: Batch, clock: float, delay: float, after: float) -> tuple[float, float]:
        """When the first stage has launched a batch, and when the last one has finished it.

        The first stage's host starts at ``clock``, delayed by ``delay``; its GPUs wait for tokens until ``after``.
        """
        first, begun = 0.0, 0.0
        host, ready, last = clock, after, self._gpu_free[-1]
        for i, cost in enumerate(self.costs):
            time = time_of(cost, batch)
            gpu, launch, prepare = time.gpu, time.launch, time.prepare
            if i:
                host = max(host, self._host_free[i])
            else:
                prepare += delay
            if host - self._gpu_free[i] > PAUSE_SECONDS:
                gpu, launch = (gpu - time.slowed) * self.rested, launch - time.hindered
            launched = host + (prepare + launch)
            begin = max(self._gpu_free[i], host + prepare, ready)
            ready = max(begin + gpu, launched + time.tail)
            if not i:
                first, begun = launched, begin
            self.worked += ready - begin
            self._host_free[i], self._gpu_free[i] = launched, ready
            host = launched
        self.occupied += ready - max(begun, last)
        return first, ready


class Pipeline(Engine):
    """An engine with several batches in flight. The log has a step for every turn, even if it ran nothing."""

    def __init__(
        self,
        limits: Limits,
        costs: Sequence[StepCost],
        names: BlockNames | None = None,
        *,
        wake: float = 0.0,
        taking_in: tuple[float, float] = (0.0, 0.0),
        rested: float = 1.0,
        reactive: bool = False,
        plain: bool = False,
        observer: StepObserver | None = None,
    ) -> None:
        assert limits.stages == len(costs) and not limits.speculative_tokens
        super().__init__(
            limits,
            costs[0],
            names,
            wake=wake,
            taking_in=taking_in,
            rested=rested,
            policy=lambda limits, names, plain: LaneScheduler(limits, names, plain=plain),
            reactive=reactive,
            plain=plain,
            observer=observer,
        )
        self.stages = Stages(costs, rested)
        self.log.stride = limits.stages
        self._depth = limits.stages + limits.async_scheduling  # of the queue
        self._fed = [0.0] * limits.stages  # by lane: when the tokens that its next batch needs are available

    @property
    def _lanes(self) -> LaneScheduler:
        assert isinstance(self.scheduler, LaneScheduler)
        return self.scheduler

    @property
    def _queue(self) -> deque[Batch]:
        return self._lanes.flights

    def submit(self, r: Request, at: float, abort_at: float = float("inf")) -> None:
        """Add a request; the engine must have run up to ``at`` before."""
        r.stride = self.limits.stages
        super().submit(r, at, abort_at)

    def next_end_bound(self) -> float:
        """No request ends before this second, if nothing is submitted meanwhile (infinite when idle)."""
        scheduler = self._lanes
        if not self.outstanding:
            return float("inf")
        if self.stuck:
            return self.due
        if scheduler.waiting or scheduler.ready or scheduler.steps_without_progress or not self._queue:
            return self.clock
        return max(self.clock, min(self._queue[0].end, self.due))

    def _restart(self, at: float) -> None:
        super()._restart(at)
        self.stages.restart(at)
        self._fed = [at] * self.limits.stages

    def _one_step(self) -> None:
        """Run one turn, and process the oldest batch's result if that is due."""
        if self.outstanding:
            batch = next_batch(self)
            if batch.empty and not self._queue:
                wait_or_refuse(self, batch)
                return
            self._enter(batch)
        queue = self._queue
        if queue and (not self.outstanding or queue[0].step <= self.step - self._depth):
            self._return(queue.popleft())
        self.flight = queue[0] if queue else None

    def _enter(self, batch: Batch) -> None:
        """Send a turn's batch, if any, to the first stage."""
        scheduler, log, clock = self._lanes, self.log, self.clock
        lane = batch.step % self.limits.stages
        after, self._fed[lane] = self._fed[lane], 0.0
        if batch.empty:
            log.ends.append(log.ends[-1])
            log.step(self.step, batch, scheduler)
            self.step += 1
            return
        if not self._queue and (not log.ends or clock > log.ends[-1]):
            log.restart(self.step, clock)
        self.clock, batch.end = self.stages.run(batch, clock, delay_of(self, batch), after)
        log.ends.append(batch.end)
        log.step(self.step, batch, scheduler)
        self.step += 1
        if self.observer is not None:
            show_step(self.observer, clock, batch, scheduler.group, scheduler.kv.free)
        self._queue.append(batch)
        left = scheduler.group.leave_ended(self.step)
        if left:
            scheduler.await_last_token(left, batch)
        if scheduler.group.size or any(_goes_on(entry.request) for entry in batch.scheduled if entry.sampled):
            self._fed[lane] = batch.end

    def _return(self, batch: Batch) -> None:
        """Process a batch's result."""
        batch.end = max(batch.end, self.clock)
        ends = self.log.ends
        for turn in range(batch.step, self.step):
            ends[turn] = max(ends[turn], batch.end)
        complete(self, batch)

    def _undo_in_flight(self, r: Request) -> None:
        for batch in reversed(self._queue):
            r.undo_emit(batch.step)


def _goes_on(r: Request) -> bool:
    """Whether a request's next token is not its last."""
    return r.computed + 1 < r.prompt + r.output
