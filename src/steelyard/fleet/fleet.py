"""Many engines behind a router, driven through a workload in virtual time.

Where the router needs no look at their load and no request passes from one to another, engines do not interact, and
each runs through its own requests alone. Otherwise they run on one clock (`together.py`).
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
from steelyard.fleet.dynamics import Changing, Dynamics
from steelyard.fleet.frontend import Frontend
from steelyard.fleet.handover import Handover
from steelyard.fleet.lockstep import Rank
from steelyard.fleet.together import Together

Progress = Callable[[int], None]
_REPORT_EVERY = 64


class _Meter:
    """Counts ended requests and tells the progress now and then."""

    def __init__(self, progress: Progress | None, done: int) -> None:
        self._progress = progress
        self._done = done
        self._told = done

    def ended(self, count: int) -> None:
        self._done += count
        if self._progress is not None and self._done - self._told >= _REPORT_EVERY:
            self._told = self._done
            self._progress(self._done)


def run_fleet(
    engines: Sequence[Engine],
    desk: Desk,
    router: Router,
    progress: Progress | None = None,
    handover: Handover | None = None,
    dynamics: Dynamics | None = None,
) -> None:
    """Serve the whole workload; engines' logs and the desk's columns then tell what happened.

    With a ``handover``, the first engines compute prompts and the others answer. ``dynamics`` say what happens to the
    fleet meanwhile, and are told what did.
    """
    meter = _Meter(progress, len(desk.refused))
    homes_known = router.keeps_sessions and not desk.refused
    lone = not any(isinstance(engine, Rank) for engine in engines)
    lone = lone and not (len(engines) > 1 and any(each.tiers and each.tiers.shared for each in engines))
    stays_apart = lone and not router.looks_at_load and (not desk.followers or homes_known)
    if dynamics is not None:
        Changing(engines, desk, router, handover, meter.ended, dynamics).run()
    elif stays_apart and handover is None:
        _run_apart(engines, desk, router, meter)
    else:
        Together(engines, desk, router, handover, meter.ended).run()


def _run_apart(engines: Sequence[Engine], desk: Desk, router: Router, meter: _Meter) -> None:
    roots = np.array([i for i in desk.roots.tolist() if i not in desk.refused], dtype=np.int64)
    work = desk.workload
    columns = (roots, desk.session[roots], work.prompt[roots], work.priority[roots], work.at[roots])
    asked = zip(*(column.tolist() for column in columns), map(desk.model_of, roots.tolist()), strict=True)
    chosen = [router.choose(RoutedRequest(i, session, (), *rest)) for i, session, *rest in asked]
    replica = np.array(chosen, dtype=np.int64)
    desk.replica[roots] = replica
    order = roots[np.argsort(replica, kind="stable")]
    bounds = np.cumsum(np.bincount(replica, minlength=len(engines)))[:-1]
    for engine, rows in zip(engines, np.split(order, bounds), strict=True):
        if desk.followers:
            _run_with_followers(engine, rows, desk, meter)
        else:
            _run_open_loop(engine, rows, desk, meter)


def _run_open_loop(engine: Engine, rows: NDArray[np.int64], desk: Desk, meter: _Meter) -> None:
    advance, submit, abort_at = engine.advance, engine.submit, desk.abort_at
    finished = engine.finished
    for r, seen in desk.requests(rows):
        advance(seen)
        submit(r, seen, abort_at(r))
        if len(finished) >= _REPORT_EVERY:
            meter.ended(len(finished))
            finished.clear()
    while not engine.idle:
        advance(inf, pause_after=_REPORT_EVERY)
        meter.ended(len(finished))
        finished.clear()


def _run_with_followers(engine: Engine, rows: NDArray[np.int64], desk: Desk, meter: _Meter) -> None:
    frontend, end_of = Frontend(desk.host), desk.ends(engine)
    pending = list(zip(desk.workload.at[rows].tolist(), rows.tolist(), strict=True))
    heapify(pending)
    waiting: deque[tuple[float, Request]] = deque()  # taken up, and not yet seen by the engine
    while pending or waiting or not engine.idle:
        arrives, seen = pending[0][0] if pending else inf, waiting[0][0] if waiting else inf
        engine.advance(min(arrives, seen))
        if engine.finished:
            meter.ended(len(engine.finished))
            for r in engine.finished:
                desk.note_holding(r)
                for follower in desk.follow(r.index, end_of(r)):
                    heappush(pending, follower)
            engine.finished.clear()
        elif seen <= arrives and waiting:
            r = waiting.popleft()[1]
            engine.submit(r, seen, desk.abort_at(r))
            held = desk.held_for(r.index)
            if held:
                engine.hand_down(held, r)
        elif pending:
            now, i = heappop(pending)
            desk.replica[i] = desk.replica[desk.session[i]]
            r = desk.request(i, now)
            waiting.append((desk.take(r, frontend, now), r))
