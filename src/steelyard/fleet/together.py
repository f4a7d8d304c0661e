"""All engines on one clock: one heap orders submissions, completions and *wake-ups*.

An engine is only run when it might complete something before the next event, by a lower bound it gives itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from math import inf, nextafter

import numpy as np

from steelyard.engine import FINISHED, Engine, Request
from steelyard.fleet.desk import Desk
from steelyard.fleet.frontend import Frontend
from steelyard.fleet.handover import Handover, Waiting
from steelyard.fleet.routers import Asked, Router

# In the order in which they happen when they fall together; engines decide after all else.
END, CHANGE, HAND_OVER, FETCH, FETCHED, FIRST, SEE, ARRIVE, WAKE = range(9)
_ROOT, _FOLLOWER = range(2)


class Together:
    """Engines that a router looks at, or that hand requests on to each other."""

    def __init__(
        self,
        engines: Sequence[Engine],
        desk: Desk,
        router: Router,
        handover: Handover | None,
        ended: Callable[[int], None],
    ) -> None:
        self.engines = engines
        self.desk = desk
        self.router = router
        self.handover = handover
        self.taking = range(len(engines) if handover is None else handover.prefills)  # replicas that clients ask
        self.ended = ended
        first_come = np.argsort(desk.workload.at[desk.roots], kind="stable")
        roots = desk.roots[first_come]
        self.arrivals = zip(desk.workload.at[roots].tolist(), roots.tolist(), strict=True)
        self.heap: list[tuple[float, int, int, int]] = []  # of arrivals only the next, so that it stays small
        self.version = [0] * len(engines)
        self.frontends = [Frontend(desk.host) for _ in engines]
        self.ends = [desk.ends(engine) for engine in engines]
        self.taken: list[deque[Request]] = [deque() for _ in engines]  # and not yet seen by the engine
        self.asked: dict[int, Asked] = {}  # of requests that have not ended
        self.awaits_first_tokens = router.awaits_first_tokens
        self.unanswered: list[list[Request]] = [[] for _ in engines]  # for a router that wants to know
        self.handed: dict[int, Request] = {}  # by index: prompts that have been computed
        self.fetches: dict[int, tuple[Request, int]] = {}  # by index: asked for, with their tokens
        self.due = inf  # when the next of them is through

    def run(self) -> None:
        """Everything that happens, in order."""
        heap = self.heap
        self._next_arrival()
        while heap:
            now, kind, a, b = heappop(heap)
            if kind == WAKE:
                if b == self.version[a]:
                    self._wake(now, a)
            elif kind == ARRIVE:
                if b == _ROOT:
                    self._next_arrival()
                self._arrive(now, a)
            elif kind == SEE:
                self._see(now, b)
            elif kind == END:
                self._end(now, a, b)
            elif kind == FIRST:
                if a in self.asked:
                    self._first_token(now, a, b)
            elif kind == HAND_OVER:
                self._hand_over(now, a, b)
            elif kind == FETCH:
                self._fetch(now, a, b)
            elif kind == FETCHED:
                self._fetched(now)
            else:
                self._change(now, a)

    def _change(self, now: float, number: int) -> None:
        """The fleet itself changes; here it never does."""

    def _next_arrival(self) -> None:
        for at, i in self.arrivals:
            heappush(self.heap, (at, ARRIVE, i, _ROOT))
            return

    def _arrive(self, now: float, i: int) -> None:
        desk = self.desk
        if i in desk.refused:
            desk.arrival[i] = now
            self._take_over(i, -1, now)
            self._follow(now, i)
            return
        r = desk.request(i, now)
        self.asked[i] = Asked(i, int(desk.session[i]), r.keys, r.prompt, r.priority, now, desk.model_of(i))
        self._send(r, now)

    def _send(self, r: Request, now: float) -> None:
        """A request goes where the router wants it."""
        desk = self.desk
        replica = self.router.choose(self.asked[r.index])
        desk.replica[r.index] = replica
        if self.handover is not None:
            r = self.handover.first_part(r)
        seen = desk.take(r, self.frontends[replica])
        self._hand(r, replica, seen)

    def _hand(self, r: Request, replica: int, seen: float) -> None:
        self.taken[replica].append(r)
        heappush(self.heap, (seen, SEE, r.index, replica))

    def _see(self, now: float, replica: int) -> None:
        engine = self._run_to(replica, now)
        r = self.taken[replica].popleft()
        engine.submit(r, now, self.desk.abort_at(r))
        held = self._take_over(r.index, replica, now)
        if held:
            engine.hand_down(held, r)
        if self.awaits_first_tokens and replica in self.taking:
            self.unanswered[replica].append(r)
        self._sleep(replica)

    def _take_over(self, i: int, replica: int, now: float) -> list[Request]:
        """What a replica holds for a row that it gets; what others hold for it they need not hold any longer."""
        held = []
        for r in self.desk.held_for(i):
            there = int(self.desk.replica[r.index])
            if there == replica:
                held.append(r)
            else:
                self._run_to(there, now).unhold(r, now)
                self._sleep(there)
        return held

    def _end(self, now: float, i: int, replica: int) -> None:
        asked = self.asked.pop(i)
        if self.handover is not None and replica >= self.handover.prefills:
            self.handover.router.ended(asked, replica - self.handover.prefills)
            self._let_go(self.handover.unfetched(i), now)
        else:
            self.router.ended(asked, replica)
        self._follow(now, i)

    def _follow(self, now: float, i: int) -> None:
        for at, child in self.desk.follow(i, now):
            heappush(self.heap, (at, ARRIVE, child, _FOLLOWER))

    def _wake(self, now: float, replica: int) -> None:
        """Run an engine up to the next event of any other, or at least through its next decision."""
        engine = self.engines[replica]
        until = self.heap[0][0] if self.heap else inf
        engine.advance(max(until, nextafter(now, inf)))
        self._collect(replica)
        self._sleep(replica)

    def _run_to(self, replica: int, now: float) -> Engine:
        engine = self.engines[replica]
        engine.advance(now)
        self._collect(replica)
        return engine

    def _collect(self, replica: int) -> None:
        engine = self.engines[replica]
        if self.unanswered[replica]:
            self._tell_first_tokens(replica)
        done = 0
        for r in engine.finished:
            self.desk.note_holding(r)
            kind = HAND_OVER if r.keep else END
            if r.keep:
                self.handed[r.index] = r
            else:
                done += 1
            heappush(self.heap, (self.ends[replica](r), kind, r.index, replica))
        engine.finished.clear()
        self.ended(done)
        for r, tokens, at in engine.to_load:
            self.fetches[r.index] = r, tokens
            heappush(self.heap, (at, FETCH, r.index, replica))
        engine.to_load.clear()

    def _first_token(self, now: float, i: int, replica: int) -> None:
        self.router.first_token(self.asked[i], replica, now)

    def _tell_first_tokens(self, replica: int) -> None:
        ends = self.engines[replica].log.ends
        waiting = self.unanswered[replica]
        for r in waiting:
            if 0 <= r.first < len(ends):
                heappush(self.heap, (ends[r.first], FIRST, r.index, replica))
        self.unanswered[replica] = [r for r in waiting if r.first < 0 and r.status < FINISHED]

    def _sleep(self, replica: int) -> None:
        self.version[replica] += 1
        bound = self.engines[replica].next_end_bound()
        if bound < inf:
            heappush(self.heap, (bound, WAKE, replica, self.version[replica]))

    # -- from prefill to decode engines -------------------------------------------------------------------------

    def _hand_over(self, now: float, i: int, replica: int) -> None:
        assert self.handover is not None
        asked = self.asked[i]
        self.router.ended(asked, replica)
        r, there = self.handover.second_part(self.handed.pop(i), replica, asked, now)
        self._hand(r, there, self.frontends[there].take(now, r.prompt)[1])

    def _fetch(self, now: float, i: int, replica: int) -> None:
        assert self.handover is not None
        r, tokens = self.fetches.pop(i)
        if tokens:
            self.handover.start(r, tokens, replica, now)
            self._await_transfer()
        else:
            self._let_go(self.handover.unfetched(i), now)

    def _fetched(self, now: float) -> None:
        handover = self.handover
        assert handover is not None
        if now != self.due:
            return  # it goes faster or slower since another began or ended
        r, replica, source = handover.ended()
        self.due = inf
        self._await_transfer()
        self._let_go(source, now)
        self._run_to(replica, now).loaded(r, now)
        self._sleep(replica)

    def _let_go(self, source: Waiting | None, now: float) -> None:
        """Nobody needs what a prefill engine has kept any more."""
        if source is not None:
            self._run_to(source.replica, now).let_go(source.prefill, now)
            self._sleep(source.replica)

    def _await_transfer(self) -> None:
        assert self.handover is not None
        at = self.handover.network.next_end + self.handover.transfers.latency
        if at != self.due:
            self.due = at
            if at < inf:
                heappush(self.heap, (at, FETCHED, 0, 0))
