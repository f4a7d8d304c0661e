"""What happens to the requests of an engine that crashes."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from steelyard.engine.request import FINISHED, LOST, Request

if TYPE_CHECKING:
    from steelyard.engine.engine import Engine


def lose_requests(engine: Engine, at: float) -> list[Request]:
    """Undo the results of steps that end after ``at``, and drop all requests that have not ended by then.

    A request that ended in such a step has not ended, and is among those returned.
    """
    scheduler, log = engine.scheduler, engine.log
    scheduler.ungroup(engine.step, engine.flight)
    whole = log.dropped + bisect_right(log.ends, at)
    if engine.flight is not None:
        whole = min(whole, engine.flight.step)
    undone = [r for r in engine.finished if r.status == FINISHED and r.last >= whole]
    engine.finished[:] = [r for r in engine.finished if r not in undone]
    for r in reversed(undone):
        log.take_back(r)
    lost = [*undone, *scheduler.running, *scheduler.loading, *scheduler.ready, *scheduler.waiting]
    for r in lost:
        for step in range(engine.step - 1, whole - 1, -1):
            r.undo_emit(step)
        r.status = LOST
        log.done(r)
    for step in range(whole, engine.step):
        log.ends[step - log.dropped] = at
    return lost
