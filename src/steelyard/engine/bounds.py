"""Lower bounds on the next end of a request: how far an engine can run without informing other engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from steelyard.engine.step_cost import decode_line, spared_by

if TYPE_CHECKING:
    from steelyard.engine.engine import Engine


def end_bound(engine: Engine) -> float:
    """No request ends before this second, if nothing is submitted meanwhile (infinite when idle)."""
    if not engine.outstanding:
        return float("inf")
    if engine.stuck:
        return engine.due
    if not engine.scheduler.only_decodes() or (engine.flight and engine.flight.entries):
        return engine.clock
    group = engine.scheduler.group
    kv = group.tokens + group.size
    spared = spared_by(engine, kv)
    if spared is not None:
        kv = spared.low  # where growing steps are fastest
    a, b, _ = decode_line(engine, group.size, kv, group.longest(engine.step) + 1, spared)
    prepare, launch, _ = engine.cost.decode_host(group.size)
    steps = group.ends[0][0] + 1 - engine.step
    if group.lacks(engine.scheduler.kv.free, engine.step, steps):
        steps = group.steps_that_fit(engine.step, engine.scheduler.kv.free, steps)  # a preemption may follow
    seconds = max((a + b * kv) * steps, (prepare + launch) * (steps - 1))  # nothing is launched behind the last one
    bound = max(engine.clock, engine.gpu_free) + seconds * (1 - 1e-9)
    if engine.tiers is not None and engine.tiers.shared:
        bound = min(bound, _next_use_bound(engine, steps, (a + b * kv) * (1 - 1e-9)))
    return min(bound, max(engine.clock, engine.due)) if engine.aborts or engine.loads else bound


def _next_use_bound(engine: Engine, steps: int, each: float) -> float:
    """The earliest second at which ``steps`` decode steps of at least ``each`` seconds can use a shared tier."""
    assert engine.tiers is not None
    group, spare = engine.scheduler.group, engine.tiers.above.spare
    if group.blocks_needed(engine.step, steps) > spare:
        steps = group.steps_that_fit(engine.step, spare, steps)
    return engine.clock + each * max(0, steps - 1)  # the next step may be scheduled while the last of these runs
