"""Many engines behind a router, driven through a workload in virtual time.

Engines do not interact, so where the router needs no look at their load each engine runs through its own requests
alone. Otherwise one heap orders submissions, completions and *wake-ups*: an engine is only run when it might
complete something before the next event, by a lower bound it gives itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from math import inf, nextafter

import numpy as np
from numpy.typing import NDArray

from steelyard.engine import Engine, Request
from steelyard.fleet.desk import Desk
from steelyard.fleet.frontend import Frontend
from steelyard.fleet.routers import Router, Sticky

_END, _SEE, _ARRIVE, _WAKE = 0, 1, 2, 3

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


def run_fleet(engines: Sequence[Engine], desk: Desk, router: Router, progress: Progress | None = None) -> None:
    """Serve the whole workload; engines' logs and the desk's columns then tell what happened."""
    meter = _Meter(progress, len(desk.refused))
    homes_known = isinstance(router, Sticky) and not desk.refused
    stays_apart = not router.looks_at_load and (not desk.followers or homes_known)
    if stays_apart:
        _run_apart(engines, desk, router, meter)
    else:
        _run_together(engines, desk, router, meter)


def _run_apart(engines: Sequence[Engine], desk: Desk, router: Router, meter: _Meter) -> None:
    roots = np.array([i for i in desk.roots.tolist() if i not in desk.refused], dtype=np.int64)
    sessions = desk.session[roots].tolist()
    replica = np.array([router.choose(session, ()) for session in sessions], dtype=np.int64)
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
                for child in desk.followers.get(r.index, ()):
                    heappush(pending, (end_of(r) + desk.think(child), child))
            engine.finished.clear()
        elif seen <= arrives and waiting:
            r = waiting.popleft()[1]
            engine.submit(r, seen, desk.abort_at(r))
        elif pending:
            now, i = heappop(pending)
            desk.replica[i] = desk.replica[desk.session[i]]
            r = desk.request(i, now)
            waiting.append((desk.take(r, frontend), r))


class _Together:
    """All engines on one clock."""

    def __init__(self, engines: Sequence[Engine], desk: Desk, router: Router, meter: _Meter) -> None:
        self.engines = engines
        self.desk = desk
        self.router = router
        self.meter = meter
        roots = zip(desk.workload.at[desk.roots].tolist(), desk.roots.tolist(), strict=True)
        self.heap: list[tuple[float, int, int, int]] = [(at, _ARRIVE, i, 0) for at, i in roots]
        heapify(self.heap)
        self.version = [0] * len(engines)
        self.frontends = [Frontend(desk.host) for _ in engines]
        self.ends = [desk.ends(engine) for engine in engines]
        self.taken: list[deque[Request]] = [deque() for _ in engines]  # and not yet seen by the engine

    def run(self) -> None:
        heap = self.heap
        while heap:
            now, kind, a, b = heappop(heap)
            if kind == _WAKE:
                if b == self.version[a]:
                    self._wake(a)
            elif kind == _ARRIVE:
                self._arrive(now, a)
            elif kind == _SEE:
                self._see(now, b)
            else:
                self.router.ended(b)
                self._follow(now, a)

    def _arrive(self, now: float, i: int) -> None:
        desk = self.desk
        if i in desk.refused:
            desk.arrival[i] = now
            self._follow(now, i)
            return
        r = desk.request(i, now)
        replica = self.router.choose(int(desk.session[i]), r.keys)
        desk.replica[i] = replica
        seen = desk.take(r, self.frontends[replica])
        self.taken[replica].append(r)
        heappush(self.heap, (seen, _SEE, i, replica))

    def _see(self, now: float, replica: int) -> None:
        engine = self.engines[replica]
        engine.advance(now)
        self._collect(replica)
        r = self.taken[replica].popleft()
        engine.submit(r, now, self.desk.abort_at(r))
        self._sleep(replica)

    def _follow(self, now: float, i: int) -> None:
        for child in self.desk.followers.get(i, ()):
            heappush(self.heap, (now + self.desk.think(child), _ARRIVE, child, 0))

    def _wake(self, replica: int) -> None:
        """Run an engine up to the next event of any other, or at least through its next decision."""
        engine = self.engines[replica]
        until = self.heap[0][0] if self.heap else inf
        engine.advance(until if until > engine.clock else nextafter(engine.clock, inf))
        self._collect(replica)
        self._sleep(replica)

    def _collect(self, replica: int) -> None:
        engine = self.engines[replica]
        self.meter.ended(len(engine.finished))
        for r in engine.finished:
            heappush(self.heap, (self.ends[replica](r), _END, r.index, replica))
        engine.finished.clear()

    def _sleep(self, replica: int) -> None:
        self.version[replica] += 1
        bound = self.engines[replica].next_end_bound()
        if bound < inf:
            heappush(self.heap, (bound, _WAKE, replica, self.version[replica]))


def _run_together(engines: Sequence[Engine], desk: Desk, router: Router, meter: _Meter) -> None:
    _Together(engines, desk, router, meter).run()
