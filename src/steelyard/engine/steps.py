"""One step of an engine: schedule it, run it on host and GPU, process the result.

With asynchronous scheduling a step stays in flight while the next one is scheduled and launched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from steelyard.cost.step import StepTime
from steelyard.engine.batch import Batch
from steelyard.engine.observer import show_step
from steelyard.engine.request import FINISHED, REJECTED, Request

if TYPE_CHECKING:
    from steelyard.engine.engine import Engine

# After an idle gap of this length the GPU's clocks have recovered from the power limit: `RESTED` was measured with it
# (docs/calibration.md), and clocks change within some tens of milliseconds (docs/profiles.md).
PAUSE_SECONDS = 0.05
# Preempting steps without any progress before a request is rejected: requests of equal priority can preempt each other
# for ever. Chosen; far more than any run that does progress.
_MOST_WITHOUT_PROGRESS = 64


def decide(engine: Engine) -> Batch | None:
    """Schedule the next step. If there is nothing to run, the step in flight returns."""
    batch = next_batch(engine)
    if not batch.empty:
        return batch
    flight = engine.flight
    if flight is not None:
        engine.flight = None
        complete(engine, flight)
    else:
        wait_or_refuse(engine, batch)
    return None


def next_batch(engine: Engine) -> Batch:
    """The batch of the next step, which may be empty."""
    scheduler = engine.scheduler
    batch = scheduler.schedule(engine.step, engine.clock, engine.flight)
    if engine.holding.successors:
        for entry in batch.scheduled:
            engine.holding.release_for(entry.request, scheduler)
    if scheduler.steps_without_progress > _MOST_WITHOUT_PROGRESS:
        scheduler.steps_without_progress = 0
        if engine.holding.held:
            engine.holding.release_oldest(scheduler)
        else:
            engine.end(batch.preempted[-1], REJECTED, "preempted again and again, and nobody got any further")
    return batch


def wait_or_refuse(engine: Engine, batch: Batch) -> None:
    """Nothing can be scheduled and nothing is in flight."""
    if engine.loads and not batch.preempted:
        engine.stuck = True
    elif engine.holding.held:
        engine.holding.release_oldest(engine.scheduler)
    elif engine.scheduler.loading or engine.holding.kept:
        engine.stuck = True
    elif engine.outstanding and not batch.preempted:
        engine.end(engine.scheduler.refuse_head(), REJECTED, "cannot be scheduled even on an empty engine")


def delay_of(engine: Engine, batch: Batch) -> float:
    """Seconds by which new requests and kernels to compile delay the host."""
    delay, engine.late = engine.late, 0.0
    if engine.first_uses is not None:
        tokens = batch.decodes + sum(chunk for chunk, _ in batch.chunks)
        delay += engine.first_uses.seconds * engine.first_uses.compile(tokens, not batch.chunks)
    return delay


def run_step(engine: Engine, batch: Batch, time: StepTime, delay: float) -> None:
    """Run a scheduled step."""
    scheduler, flight, now = engine.scheduler, engine.flight, engine.clock
    _launch(engine, batch, time, delay)
    if engine.observer is not None:
        show_step(engine.observer, now, batch, scheduler.group, scheduler.kv.free)
    left = scheduler.group.leave_ended(engine.step)
    if not engine.limits.async_scheduling:
        complete(engine, batch, left)
        return
    if left:
        scheduler.await_last_token(left, batch)
    engine.flight = batch
    if flight is not None:
        complete(engine, flight)


def _launch(engine: Engine, batch: Batch, time: StepTime, delay: float) -> None:
    """Run a step on host and GPU. The step in flight returns when the host has launched this one."""
    log, flight, clock = engine.log, engine.flight, engine.clock
    prepare = time.prepare + delay
    gpu, launch = time.gpu, time.launch
    if clock - engine.gpu_free > PAUSE_SECONDS:
        gpu, launch = (gpu - time.slowed) * engine.rested, launch - time.hindered
    launched = clock + (prepare + launch)
    end = max(engine.gpu_free, clock + prepare) + gpu
    if end < launched + time.tail:
        end = launched + time.tail
    if flight is None:
        if not log.ends or clock > log.ends[-1]:
            log.restart(engine.step, clock)
        if engine.limits.async_scheduling:
            engine.clock = launched
    elif launched > flight.end:
        flight.end = log.ends[-1] = launched
    engine.gpu_free = batch.end = end
    log.ends.append(end)
    if engine.tiers is not None:
        engine.tiers.write_through(end)
    log.step(engine.step, batch, engine.scheduler)
    engine.step += 1


def complete(engine: Engine, batch: Batch, left: Sequence[Request] = ()) -> None:
    """Process a step's result: advance the clock, deliver its tokens and free ended requests."""
    if batch.end > engine.clock:
        engine.clock = batch.end
    ended = engine.scheduler.update(batch)
    if left:
        for r in left:
            engine.scheduler.kv.complete(r, r.computed)
        ended = sorted([*ended, *left], key=lambda r: r.order)
    for r in ended:
        engine.end(r, FINISHED)
