"""Stretches: decode steps run at once, since up to the next change only their cached tokens differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from steelyard.engine.observer import show_stretch
from steelyard.engine.request import FINISHED
from steelyard.engine.step_cost import decode_line, spared_by

if TYPE_CHECKING:
    from steelyard.engine.engine import Engine

_VECTOR_STEPS = 96  # chosen: about where numpy overtakes a Python loop
_MOST_STEPS = 65536  # of one vectorised stretch: bounds its memory


def run_stretch(engine: Engine, until: float) -> bool:
    """Run decode steps up to the next change. False if not even one can run without scheduling."""
    scheduler = engine.scheduler
    group = scheduler.group
    flight = engine.flight
    size = group.size
    if engine.first_uses is not None and engine.first_uses.missing(size, decode_only=True):
        return False
    first = engine.step
    count = group.ends[0][0] + 1 - first
    pending = flight is not None and bool(flight.entries)
    sharing = engine.shared_reads is not None and scheduler.kv.sharing.again > 0
    if pending and (engine.reactive or engine.tiers is not None or scheduler.waiting or scheduler.ready or sharing):
        count = 1
    kv = group.tokens + size
    a, b, kv_max = decode_line(engine, size, kv, group.longest(first) + 1, spared_by(engine, kv))
    if kv + (count - 1) * size > kv_max:
        count = (kv_max - kv) // size + 1
    if group.slides:
        count = group.quiet(first, count)
        if not count:
            return False
    free = scheduler.kv.free if engine.tiers is None else engine.tiers.above.spare
    if group.lacks(free, first, count):
        count = group.steps_that_fit(first, free, count)
        if not count:
            return False
    clock = engine.clock
    done = _run_decodes(engine, count, size, kv, a, b, until)
    engine.step = first + done
    if pending:  # the step in flight returns after the first of these
        assert flight is not None
        book(engine, first, 1, clock)
        for r in scheduler.update(flight):
            engine.end(r, FINISHED)
        flight.entries = []
        if done > 1:
            book(engine, first + 1, done - 1, None)
    else:
        book(engine, first, done, clock)
    left = group.leave_ended(engine.step)
    if flight is None:
        for r in left:
            scheduler.kv.complete(r, r.computed)
            engine.end(r, FINISHED)
        return True
    flight.step = engine.step - 1
    flight.end = engine.gpu_free
    if left:
        scheduler.await_last_token(left, flight)
    return True


def book(engine: Engine, first: int, count: int, clock: float | None) -> None:
    """Allocate the blocks of decode steps that were run, and log the steps. The first was scheduled at ``clock``."""
    scheduler, group = engine.scheduler, engine.scheduler.group
    size, free = group.size, scheduler.kv.free
    at_first = free - group.phase[first % group.block_size]
    if group.slides:
        at_first += group.freed(first, 1)
    if engine.observer is not None:
        lag = 1 if engine.flight is None else 2
        ends, steps = engine.log.ends, range(first, first + count)
        at = [clock if clock is not None and step == first else ends[step - lag] for step in steps]
        show_stretch(engine.observer, at, first, group, free)
    scheduler.kv.take(group.blocks_needed(first, count))
    if group.slides:
        group.fall(first, count)
    kv = group.tokens + size
    group.tokens += size * count
    engine.log.stretch(first, size, kv, at_first, scheduler)


def _run_decodes(engine: Engine, count: int, size: int, kv: int, a: float, b: float, until: float) -> int:
    """Append the end times of up to ``count`` steps; stop where the next scheduling point reaches ``until``."""
    prepare, launch, tail = engine.cost.decode_host(size)
    host = prepare + launch
    lag = engine.flight is not None
    ends, append = engine.log.ends, engine.log.ends.append
    clock, end = engine.clock, engine.gpu_free
    done = 0
    while True:
        seconds = a + b * kv
        begin, launched = clock + prepare, clock + host
        if lag:
            if launched <= end and host <= seconds >= tail:  # from here on the GPU never waits
                engine.clock, engine.gpu_free = clock, end
                return done + _run_on(engine, count - done, size, kv, a, b, until)
            clock = end
            if launched > end:  # the result of the step before waits for this one's launch
                clock = ends[-1] = launched
        if begin > end:
            end = begin
        end += seconds
        if launched + tail > end:
            end = launched + tail
        if not lag:
            clock = end
        append(end)
        kv += size
        done += 1
        if done == count or clock >= until:
            break
    engine.clock, engine.gpu_free = clock, end
    return done


def _run_on(engine: Engine, count: int, size: int, kv: int, a: float, b: float, until: float) -> int:
    """The same where only GPU time counts: each step starts when the previous one ends."""
    if count >= _VECTOR_STEPS:
        return _run_on_vectorised(engine, count, size, kv, a, b, until)
    end, append = engine.gpu_free, engine.log.ends.append
    done = 0
    while True:
        before = end
        end += a + b * kv
        append(end)
        kv += size
        done += 1
        if done == count or before >= until:
            break
    engine.gpu_free = end
    engine.clock = before
    return done


def _run_on_vectorised(engine: Engine, count: int, size: int, kv: int, a: float, b: float, until: float) -> int:
    end, shortest = engine.gpu_free, a + b * kv
    if until != float("inf") and shortest > 0:
        count = min(count, int(max(0.0, until - end) / shortest) + 3)
    count = min(count, _MOST_STEPS)
    ends = np.empty(count + 1)
    ends[0] = end
    ends[1:] = a + b * (kv + size * np.arange(count, dtype=np.int64))
    np.add.accumulate(ends, out=ends)
    done = min(count, int(np.searchsorted(ends[:-1], until)) + 1)
    engine.log.ends.frombytes(ends[1 : done + 1].tobytes())
    engine.gpu_free = float(ends[done])
    engine.clock = float(ends[done - 1])
    return done
