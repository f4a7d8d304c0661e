"""Many engines behind a router, driven through a workload in virtual time.

If the router does not look at load and no request passes from one engine to another, engines do not interact, and each
runs its own requests alone. Otherwise they run on one clock (`driver.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np
from numpy.typing import NDArray

from steelyard.balance.route import RoutedRequest, Router
from steelyard.engine import Engine, Request
from steelyard.fleet.desk import Desk
from steelyard.fleet.driver import FleetDriver
from steelyard.fleet.dynamics import DynamicFleet, Dynamics
from steelyard.fleet.frontend import Frontend
from steelyard.fleet.handover import Handover
from steelyard.fleet.lockstep import Rank

Progress = Callable[[int], None]
_REPORT_EVERY = 64  # requests
_LOOKS = 32  # checks of ``hopeless`` in a run, about


class _Meter:
    """Counts ended requests. Every few of them it reports progress and checks whether to stop."""

    def __init__(
        self, progress: Progress | None, done: int, total: int = 0, hopeless: Callable[[], bool] | None = None
    ) -> None:
        self._progress, self._hopeless = progress, hopeless
        self._done = self._reported = done
        self.every = _REPORT_EVERY if hopeless is None else max(1, min(_REPORT_EVERY, total // _LOOKS))
        self.stopped = False

    def ended(self, count: int) -> bool:
        """``count`` more requests have ended. Returns whether to stop."""
        self._done += count
        if self._done - self._reported >= self.every:
            self._reported = self._done
            if self._progress is not None:
                self._progress(self._done)
            if self._hopeless is not None and not self.stopped:
                self.stopped = self._hopeless()
        return self.stopped


def run_fleet(
    engines: Sequence[Engine],
    desk: Desk,
    router: Router,
    progress: Progress | None = None,
    handover: Handover | None = None,
    dynamics: Dynamics | None = None,
    until: float = inf,
    hopeless: Callable[[], bool] | None = None,
) -> None:
    """Serve the workload, at most up to second ``until``. The engines' logs and the desk's columns hold the result.

    With a ``handover``, the first engines prefill and the others decode. ``dynamics`` say what happens to the fleet,
    and record what happened. ``hopeless`` is called every few ended requests; the run stops when it returns true.
    """
    meter = _Meter(progress, len(desk.refused), len(desk.workload), hopeless)
    homes_known = router.keeps_sessions and not desk.refused
    lone = not any(isinstance(engine, Rank) for engine in engines)
    lone = lone and not (len(engines) > 1 and any(each.tiers and each.tiers.shared for each in engines))
    stays_apart = lone and not router.looks_at_load and (not desk.followers or homes_known)
    if dynamics is not None:
        DynamicFleet(engines, desk, router, handover, meter.ended, dynamics).run(until)
    elif stays_apart and handover is None:
        _run_apart(engines, desk, router, meter, until)
    else:
        FleetDriver(engines, desk, router, handover, meter.ended).run(until)


def _run_apart(engines: Sequence[Engine], desk: Desk, router: Router, meter: _Meter, until: float = inf) -> None:
    roots = np.array([i for i in desk.roots.tolist() if i not in desk.refused], dtype=np.int64)
    work = desk.workload
    columns = (roots, desk.session[roots], work.prompt[roots], work.priority[roots], work.at[roots])
    routed = zip(*(column.tolist() for column in columns), map(desk.model_of, roots.tolist()), strict=True)
    chosen = [router.choose(RoutedRequest(i, session, (), *rest)) for i, session, *rest in routed]
    replica = np.array(chosen, dtype=np.int64)
    desk.replica[roots] = replica
    order = roots[np.argsort(replica, kind="stable")]
    bounds = np.cumsum(np.bincount(replica, minlength=len(engines)))[:-1]
    for engine, rows in zip(engines, np.split(order, bounds), strict=True):
        if desk.followers:
            _run_with_followers(engine, rows, desk, meter, until)
        else:
            _run_open_loop(engine, rows, desk, meter, until)
        if meter.stopped:
            return


def _run_open_loop(engine: Engine, rows: NDArray[np.int64], desk: Desk, meter: _Meter, until: float) -> None:
    advance, submit, abort_at = engine.advance, engine.submit, desk.abort_at
    finished, every = engine.finished, meter.every
    for r, seen in desk.requests(rows):
        if seen > until:
            break
        advance(seen)
        submit(r, seen, abort_at(r))
        if len(finished) >= every:
            if meter.ended(len(finished)):
                return
            finished.clear()
    while not engine.idle:
        advance(until, pause_after=every)
        if meter.ended(len(finished)) or (until < inf and not finished):
            return
        finished.clear()


def _run_with_followers(engine: Engine, rows: NDArray[np.int64], desk: Desk, meter: _Meter, until: float) -> None:
    frontend, end_of = Frontend(desk.host), desk.ends(engine)
    pending = list(zip(desk.workload.at[rows].tolist(), rows.tolist(), strict=True))
    heapify(pending)
    waiting: deque[tuple[float, Request]] = deque()  # taken up, not yet seen by the engine
    while pending or waiting or not engine.idle:
        arrives, seen = pending[0][0] if pending else inf, waiting[0][0] if waiting else inf
        engine.advance(min(arrives, seen, until))
        if engine.finished:
            if meter.ended(len(engine.finished)):
                return
            for r in engine.finished:
                desk.note_holding(r)
                for follower in desk.follow(r.index, end_of(r)):
                    heappush(pending, follower)
            engine.finished.clear()
        elif min(arrives, seen) > until or (until < inf and not pending and not waiting):
            return
        elif seen <= arrives and waiting:
            r = waiting.popleft()[1]
            engine.submit(r, seen, desk.abort_at(r))
            held = desk.held_for(r.index)
            if held:
                engine.transfer_held(held, r)
        elif pending:
            now, i = heappop(pending)
            desk.replica[i] = desk.replica[desk.session[i]]
            r = desk.request(i, now)
            waiting.append((desk.take(r, frontend, now), r))
