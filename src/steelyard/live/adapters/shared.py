"""Which server takes a request, for frameworks that ask: the plain routers, with servers that come and go.

A framework says that a session wants a server and later that it has let go of it. It does not say how many tokens were
generated or when a session is over, which routers of rollouts with predictions need. So these are the routers that
choose by load, session and prefix.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from threading import Lock

from steelyard.balance.route.draws import HashedPairs
from steelyard.balance.route.plain import LeastOutstanding, PowerOfTwo, RoundRobin, Sticky, StickySpill
from steelyard.balance.route.protocol import RoutedRequest, Router
from steelyard.balance.route.rollout.plain import GroupPrefixAware
from steelyard.errors import UserError, did_you_mean

_MAKERS: dict[str, Callable[[int], Router]] = {
    "round-robin": lambda _: RoundRobin(),
    "least-outstanding": lambda _: LeastOutstanding(),
    "sticky": lambda _: Sticky(LeastOutstanding()),
    "sticky-spill": lambda _: StickySpill(),
    "prefix-aware": lambda _: GroupPrefixAware(),
    "power-of-two": lambda seed: PowerOfTwo(HashedPairs(seed)),
}
ADAPTER_ROUTERS = tuple(_MAKERS)
SESSIONS = 10_000
"""Sessions that are remembered, those that were seen last: as many as in verl's own load balancer."""


class NoServerUp(RuntimeError):
    """No server can take a request now."""


@dataclass(slots=True)
class _Visits:
    """What is known of a session: the name of its first prompt, its requests so far, where the last one went."""

    prompt: int | str
    requests: int = 0
    home: int | None = None


class ElasticRouter:
    """A plain router as a serving router, for replicas that are not known beforehand.

    It counts unfinished requests and remembers where the last sessions went. Sessions whose first prompts are equal
    share a prefix, as the samples of a group do.
    """

    awaits_first_tokens = False

    def __init__(self, name: str, seed: int = 0, sessions: int = SESSIONS) -> None:
        if name not in _MAKERS:
            raise UserError(f"router: {name!r} is not one of them; {did_you_mean(name, _MAKERS)}")
        if sessions < 1:
            raise UserError(f"sessions: must be at least 1 (found {sessions})")
        self._name, self._seed = name, seed
        self._router = _MAKERS[name](seed)
        self.looks_at_load = self._router.looks_at_load
        self.keeps_sessions = self._router.keeps_sessions
        self._most = sessions
        self._up: set[int] = set()
        self._counts: dict[int, int] = {}
        self._sessions: OrderedDict[int | str, _Visits] = OrderedDict()

    def available(self, replica: int, up: bool) -> None:
        if up == (replica in self._up):
            return
        if up:
            self._up.add(replica)
            self._router.available(replica, True)
            self._router.set_load(replica, self._counts.setdefault(replica, 0))
            return
        self._up.discard(replica)
        self._router.available(replica, False)
        for visits in self._sessions.values():
            if visits.home == replica:
                visits.home = None

    def set_load(self, replica: int, requests: int) -> None:
        self._counts[replica] = requests
        if replica in self._up:
            self._router.set_load(replica, requests)

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        if not self._up:
            raise NoServerUp("no server is up")
        visits = self._sessions.pop(request.session, None)
        if visits is None:
            visits = _Visits(request.names[-1] if request.names else request.session)
        self._sessions[request.session] = visits  # now the one that was seen last
        replica = self._router.choose(_as_turn(request, visits), visits.home if home is None else home)
        visits.home = replica
        visits.requests += 1
        self.set_load(replica, self._counts[replica] + 1)
        if len(self._sessions) > self._most:
            self._forget(*self._sessions.popitem(last=False))
        return replica

    def first_token(self, request: RoutedRequest, replica: int, at: float) -> None:
        pass

    def ended(self, request: RoutedRequest, replica: int) -> None:
        self.set_load(replica, self._counts[replica] - 1)

    def session_ended(self, request: RoutedRequest) -> None:
        visits = self._sessions.pop(request.session, None)
        if visits is not None:
            self._forget(request.session, visits)

    def forget_sessions(self) -> int:
        """Forget where sessions and prompts went. Loads stay. Returns how many sessions were known."""
        known = len(self._sessions)
        self._sessions.clear()
        self._router = _MAKERS[self._name](self._seed)
        for replica in sorted(self._up):
            self._router.available(replica, True)
            self._router.set_load(replica, self._counts[replica])
        return known

    def _forget(self, session: int | str, visits: _Visits) -> None:
        self._router.session_ended(RoutedRequest(session, session, (visits.prompt,), 0))


def _as_turn(request: RoutedRequest, visits: _Visits) -> RoutedRequest:
    """A request as rollouts present them: named after its session, with the session's first prompt as its prefix."""
    return RoutedRequest(
        request.session, request.session, (visits.prompt,), request.prompt, at=request.at, turn=visits.requests
    )


class SessionRouter:
    """Servers by name, and a seat for each unfinished request. May be called from several threads.

    A seat is freed once: by its release, or when its server goes. Releases of seats that are not taken do nothing.
    """

    def __init__(self, router: str = "prefix-aware", seed: int = 0, sessions: int = SESSIONS) -> None:
        self._router = ElasticRouter(router, seed, sessions)
        self.reads_prompts = router == "prefix-aware"
        self._lock = Lock()
        self._numbers: dict[str, int] = {}
        self._servers: dict[int, str] = {}
        self._seats: dict[str, dict[str, int]] = {}  # unfinished requests, by server and session

    def add(self, servers: Iterable[str]) -> None:
        """Servers have come up. Nothing changes for those that are known."""
        with self._lock:
            for server in servers:
                if server not in self._numbers:
                    number = next(each for each in count() if each not in self._servers)
                    self._numbers[server], self._servers[number], self._seats[server] = number, server, {}
                    self._router.available(number, True)

    def remove(self, servers: Iterable[str]) -> None:
        """Servers have gone, with their requests."""
        with self._lock:
            for server in servers:
                if server in self._numbers:
                    number = self._numbers.pop(server)
                    del self._servers[number], self._seats[server]
                    self._router.set_load(number, 0)
                    self._router.available(number, False)

    def acquire(self, session: str, prompt: Sequence[int] = (), among: Collection[str] | None = None) -> str:
        """A server for a session's next request. With ``among``, one of these; what is remembered of others is lost."""
        with self._lock:
            others = [] if among is None else [self._numbers[each] for each in self._numbers if each not in among]
            for number in others:
                self._router.available(number, False)
            try:
                number = self._router.choose(RoutedRequest(session, session, _names(prompt), len(prompt)))
            finally:
                for other in others:
                    self._router.available(other, True)
            server = self._servers[number]
            seats = self._seats[server]
            seats[session] = seats.get(session, 0) + 1
            return server

    def release(self, server: str, session: str | None = None) -> bool:
        """A request is over. Without a session it is the one that has been on this server longest."""
        with self._lock:
            seats = self._seats.get(server, {})
            if session is None:
                session = next(iter(seats), None)
            if session is None or session not in seats:
                return False
            seats[session] -= 1
            if not seats[session]:
                del seats[session]
            self._router.ended(RoutedRequest(session, session, (), 0), self._numbers[server])
            return True

    def end(self, session: str) -> None:
        """No more requests of this session will come."""
        with self._lock:
            self._router.session_ended(RoutedRequest(session, session, (), 0))

    def forget_sessions(self) -> int:
        """Forget where sessions went, so that all of them are routed anew. Returns how many were known."""
        with self._lock:
            return self._router.forget_sessions()

    def loads(self) -> dict[str, int]:
        """Unfinished requests of each server."""
        with self._lock:
            return {server: sum(seats.values()) for server, seats in self._seats.items()}


def _names(prompt: Sequence[int]) -> tuple[int, ...]:
    """A name for a whole prompt."""
    if not prompt:
        return ()
    try:
        data = array("q", prompt).tobytes()
    except (TypeError, OverflowError):  # no token ids
        return ()
    return (int.from_bytes(blake2b(data, digest_size=8).digest(), "little"),)
