"""Drives engines that interact, on one clock that orders submissions, completions and *wake-ups*.

Each engine gives a lower bound on its next completion. It is run when that bound comes up before any other event.
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
from steelyard.fleet.lockstep import ranks_of

# Priorities of events at the same second. Engines decide after all other events.
END, CHANGE, HAND_OVER, FETCH, FETCHED, FIRST, SEE, ARRIVE, WAKE = range(9)
_ROOT, _FOLLOWER = range(2)

FleetEvent = tuple[float, int, int, int]
"""(second, kind of event, request or replica, replica or version)."""
Action = Callable[[float], None]
_EVENTS_AT_ONCE = 16  # of a request or replica, on average; chosen, far more than any has


class Changes(Protocol):
    """What the driver asks and reports in a fleet whose replicas come and go. Requests are given by index."""

    def has_replica(self, model: str, answering: bool) -> bool:
        """Whether any replica takes new requests or, with ``answering``, computed prompts."""
        ...

    def await_replica(self, r: Request) -> None:
        """A request waits, since no replica is up."""
        ...

    def await_decode_replica(self, i: int, replica: int) -> None:
        """A prompt that this replica computed waits, since no decode replica is up."""
        ...

    def placed(self, r: Request, replica: int) -> None:
        """A request was sent to a replica."""
        ...

    def undone(self, replica: int) -> list[Request]:
        """Finished requests whose last step ends after the engine's next crash."""
        ...

    def first_token(self, i: int, replica: int, now: float) -> None:
        """A replica has given a request's first token."""
        ...

    def ends(self, i: int, replica: int, now: float) -> None:
        """A request has ended. Called before routers are told."""
        ...

    def left(self, replica: int, now: float) -> None:
        """A replica no longer holds anything of one of its requests."""
        ...


class FleetDriver:
    """Engines behind a router that looks at their load, or engines that hand requests over to each other."""

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
        self.ranks = ranks_of(engines)
        self.desk = desk
        self.router = router
        self.handover = handover
        self.changes = changes  # None: all replicas are up all the time
        self.taking = range(
            len(engines) if handover is None else handover.prefills
        )  # replicas that get clients' requests
        self.answering = range(len(self.taking), len(engines))  # replicas that get computed prompts
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
        self.clock.most_at_once += _EVENTS_AT_ONCE * (len(desk.workload) + len(engines))
        self.schedule = self.clock.schedule  # only the next arrival is on the agenda, so that it stays small
        self.version = [0] * len(engines)
        self.frontends = [Frontend(desk.host) for _ in engines]
        self.ends = [desk.ends(engine) for engine in engines]
        self.taken: list[deque[Request]] = [deque() for _ in engines]  # sent to a replica, not yet seen by its engine
        self.in_flight: dict[int, RoutedRequest] = {}  # by index: requests that have not ended
        self.awaits_first_tokens = awaits_first_tokens or router.awaits_first_tokens
        self.unanswered: list[list[Request]] = [
            [] for _ in engines
        ]  # without a first token; filled only if the router or a scaler needs it
        self.handed: dict[int, Request] = {}  # by index: prompts that have been computed
        self.fetches: dict[int, tuple[Request, int]] = {}  # by index: transfers that engines asked for, and tokens
        self.due = inf  # when the next transfer ends
        self.actions: dict[int, Action] = {}  # by number of the event
        self._next_action = 0  # number of the next one

    def run(self, until: float = inf) -> None:
        """Handle all events up to a second."""
        self._next_arrival()
        self.clock.run(until)

    @property
    def serving(self) -> bool:
        """Whether any request has yet to arrive or to end."""
        return bool(self.in_flight) or any(event[1] == ARRIVE for event in self.clock.agenda)

    def at(self, at: float, action: Action) -> None:
        """Run an action at a second, unless all requests have ended by then."""
        self.actions[self._next_action] = action
        self.schedule((at, CHANGE, self._next_action, 0))
        self._next_action += 1

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
        self.in_flight[i] = RoutedRequest(i, int(desk.session[i]), r.keys, r.prompt, r.priority, now, desk.model_of(i))
        self.send(r, now)

    def send(self, r: Request, now: float) -> None:
        """Send a request to the replica that the router chooses."""
        routed, desk = self.in_flight[r.index], self.desk
        if self.changes is not None and not self.changes.has_replica(routed.model, answering=False):
            desk.arrival[r.index] = r.arrival
            self.changes.await_replica(r)
            return
        replica = self.router.choose(routed)
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
        """Requests whose blocks a replica holds for row ``i``. Blocks that other replicas hold for it are released."""
        held = []
        for r in self.desk.held_for(i):
            holder = int(self.desk.replica[r.index])
            if holder == replica:
                held.append(r)
            else:
                self.run_to(holder, now).release_held(r, now)
                self.sleep(holder)
        return held

    # -- from engines to clients --------------------------------------------------------------------------------

    def _on_end(self, event: FleetEvent) -> None:
        now, _, i, replica = event
        if self.changes is not None:
            self.changes.ends(i, replica, now)
        routed = self.in_flight.pop(i)
        if self.handover is not None and replica >= self.handover.prefills:
            self.handover.router.ended(routed, replica - self.handover.prefills)
            self.release_prefill(self.handover.unfetched(i), now)
        else:
            self.router.ended(routed, replica)
        self.follow(now, i)
        if self.changes is not None:
            self.changes.left(replica, now)

    def follow(self, now: float, i: int) -> None:
        """A request has ended: schedule the requests that follow it."""
        for at, child in self.desk.follow(i, now):
            self.schedule((at, ARRIVE, child, _FOLLOWER))

    def _on_wake(self, event: FleetEvent) -> None:
        """Run an engine up to the next event of any other, or at least through its next decision."""
        now, _, replica, version = event
        if version != self.version[replica]:
            return
        self._advance(replica, max(self.clock.horizon, nextafter(now, inf)))
        self.sleep(replica)

    def run_to(self, replica: int, now: float) -> Engine:
        """Run an engine up to a second, and return it."""
        self._advance(replica, now)
        return self.engines[replica]

    def _advance(self, replica: int, until: float) -> None:
        """Run an engine and collect what it reports. If it is a rank, all ranks run, and any of them may pause all."""
        self.engines[replica].advance(until)
        self._collect(replica)
        for number, rank in self.ranks[replica]:
            if rank.pauses_all:
                self._collect(number)

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
        if i in self.in_flight:
            if self.changes is not None:
                self.changes.first_token(i, replica, now)
            self.router.first_token(self.in_flight[i], replica, now)

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
        """A replica has computed a prompt: send it to the decode replica that the decode router chooses."""
        assert self.handover is not None
        routed = self.in_flight[i]
        if self.changes is not None and not self.changes.has_replica(routed.model, answering=True):
            self.changes.await_decode_replica(i, replica)
            return
        self.router.ended(routed, replica)
        r, decode = self.handover.second_part(self.handed.pop(i), replica, routed, now)
        self._hand(r, decode, self.frontends[decode].take(now, r.prompt)[1])

    def _on_fetch(self, event: FleetEvent) -> None:
        now, _, i, replica = event
        assert self.handover is not None
        r, tokens = self.fetches.pop(i)
        if tokens:
            self.handover.start(r, tokens, replica, now)
            self.await_transfer()
        else:
            self.release_prefill(self.handover.unfetched(i), now)

    def _on_fetched(self, event: FleetEvent) -> None:
        now, handover = event[0], self.handover
        assert handover is not None
        if now != self.due:
            return  # outdated: its rate changed when another transfer began or ended
        r, replica, source = handover.ended()
        self.due = inf
        self.await_transfer()
        self.release_prefill(source, now)
        self.run_to(replica, now).loaded(r, now)
        self.sleep(replica)

    def release_prefill(self, source: Waiting | None, now: float) -> None:
        """Release the blocks that a prefill engine kept for a request."""
        if source is None:
            return
        self.run_to(source.replica, now).let_go(source.prefill, now)
        self.sleep(source.replica)
        if self.changes is not None:
            self.changes.left(source.replica, now)

    def await_transfer(self) -> None:
        """Schedule the end of the next transfer, after any has begun, ended or changed its rate."""
        assert self.handover is not None
        at = self.handover.network.next_end + self.handover.transfers.latency
        if at != self.due:
            self.due = at
            if at < inf:
                self.schedule((at, FETCHED, 0, 0))
