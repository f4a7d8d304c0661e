"""All engines on one clock, which orders submissions, completions and *wake-ups*.

An engine is only run when it might complete something before the next event, by a lower bound it gives itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf, nextafter
from typing import Protocol

import numpy as np

from steelyard.balance.route import RoutedRequest, Router
from steelyard.engine import FINISHED, Engine, Request
from steelyard.fleet.desk import Desk
from steelyard.fleet.environment import Environment
from steelyard.fleet.frontend import Frontend
from steelyard.fleet.handover import Handover, Waiting

# In the order in which they happen when they fall together; engines decide after all else.
END, CHANGE, HAND_OVER, FETCH, FETCHED, FIRST, SEE, ARRIVE, WAKE = range(9)
_ROOT, _FOLLOWER = range(2)

FleetEvent = tuple[float, int, int, int]
"""(second, which of the above, request or replica, replica or version)."""
Action = Callable[[float], None]


class Changes(Protocol):
    """What a clock asks and tells about a fleet whose replicas come and go. Requests are known by their index."""

    def has_replica(self, model: str, answering: bool) -> bool:
        """Whether any replica is there for a new request, or, ``answering``, for a computed prompt."""
        ...

    def await_replica(self, r: Request) -> None:
        """No replica is there for a request."""
        ...

    def await_decode_replica(self, i: int, replica: int) -> None:
        """No replica is there for a prompt that this one has computed."""
        ...

    def placed(self, r: Request, replica: int) -> None:
        """A replica gets a request."""
        ...

    def undone(self, replica: int) -> list[Request]:
        """Of the requests that an engine has finished, those that it will not live to finish."""
        ...

    def first_token(self, i: int, replica: int, now: float) -> None:
        """A replica has given a request's first token."""
        ...

    def ends(self, i: int, replica: int, now: float) -> None:
        """A request has ended, and nobody else knows yet."""
        ...

    def left(self, replica: int, now: float) -> None:
        """A replica has nothing of one of its requests any more."""
        ...


class Together:
    """Engines that a router looks at, or that hand requests on to each other."""

    def __init__(
        self,
        engines: Sequence[Engine],
        desk: Desk,
        router: Router,
        handover: Handover | None,
        ended: Callable[[int], bool | None],
        changes: Changes | None = None,
        awaits_first_tokens: bool = False,
    ) -> None:
        self.engines = engines
        self.desk = desk
        self.router = router
        self.handover = handover
        self.changes = changes  # None: all replicas are there all the time
        self.taking = range(len(engines) if handover is None else handover.prefills)  # replicas that clients ask
        self.answering = range(len(self.taking), len(engines))  # replicas that prompts are handed on to
        self.ended = ended
        first_come = np.argsort(desk.workload.at[desk.roots], kind="stable")
        roots = desk.roots[first_come]
        self.arrivals = zip(desk.workload.at[roots].tolist(), roots.tolist(), strict=True)
        self.clock: Environment[FleetEvent] = Environment(
            (
                self._on_end,
                self._on_change,
                self._on_hand_over,
                self._on_fetch,
                self._on_fetched,
                self._on_first,
                self._on_see,
                self._on_arrive,
                self._on_wake,
            )
        )
        self.schedule = self.clock.schedule  # of arrivals only the next, so that the agenda stays small
        self.version = [0] * len(engines)
        self.frontends = [Frontend(desk.host) for _ in engines]
        self.ends = [desk.ends(engine) for engine in engines]
        self.taken: list[deque[Request]] = [deque() for _ in engines]  # and not yet seen by the engine
        self.asked: dict[int, RoutedRequest] = {}  # of requests that have not ended
        self.awaits_first_tokens = awaits_first_tokens or router.awaits_first_tokens
        self.unanswered: list[list[Request]] = [[] for _ in engines]  # for routers and rules that go by first tokens
        self.handed: dict[int, Request] = {}  # by index: prompts that have been computed
        self.fetches: dict[int, tuple[Request, int]] = {}  # by index: asked for, with their tokens
        self.due = inf  # when the next of them is through
        self.actions: dict[int, Action] = {}  # by number of the event
        self.told = 0  # such events so far

    def run(self, until: float = inf) -> None:
        """Everything that happens, in order."""
        self._next_arrival()
        self.clock.run(until)

    @property
    def serving(self) -> bool:
        """Whether any request has still to end or to come."""
        return bool(self.asked) or any(event[1] == ARRIVE for event in self.clock.agenda)

    def at(self, at: float, action: Action) -> None:
        """Have something done at a second, if not all has been served by then."""
        self.actions[self.told] = action
        self.schedule((at, CHANGE, self.told, 0))
        self.told += 1

    def _on_change(self, event: FleetEvent) -> None:
        now, _, number, _ = event
        action = self.actions.pop(number)
        if self.serving:
            action(now)

    # -- from clients to engines --------------------------------------------------------------------------------

    def _next_arrival(self) -> None:
        for at, i in self.arrivals:
            self.schedule((at, ARRIVE, i, _ROOT))
            return

    def _on_arrive(self, event: FleetEvent) -> None:
        now, _, i, kind = event
        if kind == _ROOT:
            self._next_arrival()
        desk = self.desk
        if i in desk.refused:
            desk.arrival[i] = now
            self.take_over(i, -1, now)
            self.follow(now, i)
            return
        r = desk.request(i, now)
        self.asked[i] = RoutedRequest(i, int(desk.session[i]), r.keys, r.prompt, r.priority, now, desk.model_of(i))
        self.send(r, now)

    def send(self, r: Request, now: float) -> None:
        """A request goes where the router wants it."""
        asked, desk = self.asked[r.index], self.desk
        if self.changes is not None and not self.changes.has_replica(asked.model, answering=False):
            desk.arrival[r.index] = r.arrival
            self.changes.await_replica(r)
            return
        replica = self.router.choose(asked)
        desk.replica[r.index] = replica
        if self.handover is not None:
            r = self.handover.first_part(r)
        self._hand(r, replica, desk.take(r, self.frontends[replica], now))

    def _hand(self, r: Request, replica: int, seen: float) -> None:
        if self.changes is not None:
            self.changes.placed(r, replica)
        self.taken[replica].append(r)
        self.schedule((seen, SEE, r.index, replica))

    def _on_see(self, event: FleetEvent) -> None:
        now, _, _, replica = event
        engine = self.run_to(replica, now)
        r = self.taken[replica].popleft()
        engine.submit(r, now, self.desk.abort_at(r))
        held = self.take_over(r.index, replica, now)
        if held:
            engine.transfer_held(held, r)
        if self.awaits_first_tokens and replica in self.taking:
            self.unanswered[replica].append(r)
        self.sleep(replica)

    def take_over(self, i: int, replica: int, now: float) -> list[Request]:
        """What a replica holds for a row that it gets; what others hold for it they need not hold any longer."""
        held = []
        for r in self.desk.held_for(i):
            there = int(self.desk.replica[r.index])
            if there == replica:
                held.append(r)
            else:
                self.run_to(there, now).release_held(r, now)
                self.sleep(there)
        return held

    # -- from engines to clients --------------------------------------------------------------------------------

    def _on_end(self, event: FleetEvent) -> None:
        now, _, i, replica = event
        if self.changes is not None:
            self.changes.ends(i, replica, now)
        asked = self.asked.pop(i)
        if self.handover is not None and replica >= self.handover.prefills:
            self.handover.router.ended(asked, replica - self.handover.prefills)
            self.let_go(self.handover.unfetched(i), now)
        else:
            self.router.ended(asked, replica)
        self.follow(now, i)
        if self.changes is not None:
            self.changes.left(replica, now)

    def follow(self, now: float, i: int) -> None:
        """A request has ended: who waits for that comes next."""
        for at, child in self.desk.follow(i, now):
            self.schedule((at, ARRIVE, child, _FOLLOWER))

    def _on_wake(self, event: FleetEvent) -> None:
        """Run an engine up to the next event of any other, or at least through its next decision."""
        now, _, replica, version = event
        if version != self.version[replica]:
            return
        self.engines[replica].advance(max(self.clock.horizon, nextafter(now, inf)))
        self._collect(replica)
        self.sleep(replica)

    def run_to(self, replica: int, now: float) -> Engine:
        """An engine, run up to a second."""
        engine = self.engines[replica]
        engine.advance(now)
        self._collect(replica)
        return engine

    def _collect(self, replica: int) -> None:
        engine = self.engines[replica]
        if self.unanswered[replica]:
            self._tell_first_tokens(replica)
        undone = self.changes.undone(replica) if self.changes is not None else []
        done = 0
        for r in engine.finished:
            if undone and r in undone:
                continue
            self.desk.note_holding(r)
            kind = HAND_OVER if r.keep else END
            if r.keep:
                self.handed[r.index] = r
            else:
                done += 1
            self.schedule((self.ends[replica](r), kind, r.index, replica))
        engine.finished[:] = undone
        if self.ended(done):
            self.clock.stop()
        for r, tokens, at in engine.to_load:
            self.fetches[r.index] = r, tokens
            self.schedule((at, FETCH, r.index, replica))
        engine.to_load.clear()

    def _on_first(self, event: FleetEvent) -> None:
        now, _, i, replica = event
        if i in self.asked:
            if self.changes is not None:
                self.changes.first_token(i, replica, now)
            self.router.first_token(self.asked[i], replica, now)

    def _tell_first_tokens(self, replica: int) -> None:
        ends = self.engines[replica].log.ends
        waiting = self.unanswered[replica]
        for r in waiting:
            if 0 <= r.first < len(ends):
                self.schedule((ends[r.first], FIRST, r.index, replica))
        self.unanswered[replica] = [r for r in waiting if r.first < 0 and r.status < FINISHED]

    def sleep(self, replica: int) -> None:
        """Look at an engine again when its next request may end."""
        self.version[replica] += 1
        bound = self.engines[replica].next_end_bound()
        if bound < inf:
            self.schedule((bound, WAKE, replica, self.version[replica]))

    # -- from prefill to decode engines -------------------------------------------------------------------------

    def _on_hand_over(self, event: FleetEvent) -> None:
        now, _, i, replica = event
        self.hand_over(i, replica, now)

    def hand_over(self, i: int, replica: int, now: float) -> None:
        """A replica has computed a prompt; the decode router says who answers."""
        assert self.handover is not None
        asked = self.asked[i]
        if self.changes is not None and not self.changes.has_replica(asked.model, answering=True):
            self.changes.await_decode_replica(i, replica)
            return
        self.router.ended(asked, replica)
        r, there = self.handover.second_part(self.handed.pop(i), replica, asked, now)
        self._hand(r, there, self.frontends[there].take(now, r.prompt)[1])

    def _on_fetch(self, event: FleetEvent) -> None:
        now, _, i, replica = event
        assert self.handover is not None
        r, tokens = self.fetches.pop(i)
        if tokens:
            self.handover.start(r, tokens, replica, now)
            self.await_transfer()
        else:
            self.let_go(self.handover.unfetched(i), now)

    def _on_fetched(self, event: FleetEvent) -> None:
        now, handover = event[0], self.handover
        assert handover is not None
        if now != self.due:
            return  # it goes faster or slower since another began or ended
        r, replica, source = handover.ended()
        self.due = inf
        self.await_transfer()
        self.let_go(source, now)
        self.run_to(replica, now).loaded(r, now)
        self.sleep(replica)

    def let_go(self, source: Waiting | None, now: float) -> None:
        """Nobody needs what a prefill engine has kept any more."""
        if source is None:
            return
        self.run_to(source.replica, now).let_go(source.prefill, now)
        self.sleep(source.replica)
        if self.changes is not None:
            self.changes.left(source.replica, now)

    def await_transfer(self) -> None:
        """Transfers have begun, ended or changed their rate: look again when the next one ends."""
        assert self.handover is not None
        at = self.handover.network.next_end + self.handover.transfers.latency
        if at != self.due:
            self.due = at
            if at < inf:
                self.schedule((at, FETCHED, 0, 0))
