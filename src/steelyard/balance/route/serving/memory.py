"""Wrappers that keep state for routers of serving fleets: loads of replicas, homes of sessions.

Each class wraps a router and has the same protocol.
"""

from __future__ import annotations

from steelyard.balance.route.protocol import RoutedRequest, Router


class _Before:
    """Forwards every call to the wrapped router."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.looks_at_load = router.looks_at_load
        self.awaits_first_tokens = router.awaits_first_tokens
        self.keeps_sessions = router.keeps_sessions

    def available(self, replica: int, up: bool) -> None:
        self.router.available(replica, up)

    def set_load(self, replica: int, requests: int) -> None:
        self.router.set_load(replica, requests)

    def first_token(self, request: RoutedRequest, replica: int, at: float) -> None:
        self.router.first_token(request, replica, at)

    def ended(self, request: RoutedRequest, replica: int) -> None:
        self.router.ended(request, replica)

    def session_ended(self, request: RoutedRequest) -> None:
        self.router.session_ended(request)


class CountedLoads(_Before):
    """Counts the unfinished requests of each replica by what is sent and what ends."""

    def __init__(self, router: Router, replicas: int) -> None:
        super().__init__(router)
        self.counts = [0] * replicas

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        replica = self.router.choose(request, home)
        count = self.counts[replica] = self.counts[replica] + 1
        self.router.set_load(replica, count)
        return replica

    def ended(self, request: RoutedRequest, replica: int) -> None:
        count = self.counts[replica] = self.counts[replica] - 1
        self.router.set_load(replica, count)
        self.router.ended(request, replica)


class SessionHomes(_Before):
    """Remembers where the last request of each session went: that is the session's home while it is available."""

    def __init__(self, router: Router) -> None:
        super().__init__(router)
        self._homes: dict[int | str, int] = {}
        self._down: set[int] = set()

    def available(self, replica: int, up: bool) -> None:
        if up:
            self._down.discard(replica)
        else:
            self._down.add(replica)
        self.router.available(replica, up)

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        if home is None:
            home = self._homes.get(request.session)
        replica = self.router.choose(request, None if home in self._down else home)
        self._homes[request.session] = replica
        return replica

    def session_ended(self, request: RoutedRequest) -> None:
        self._homes.pop(request.session, None)
        self.router.session_ended(request)
