"""Routers that need no estimate: in turn, at random, by load, by session or by prefix.

Serving fleets and rollouts use the same ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from steelyard.balance.route.draws import Pairs, UniformDraws
from steelyard.balance.route.protocol import BaseRouter, RoutedRequest, Router
from steelyard.balance.route.ranking import Ranking, set_member

_FACTOR, _SLACK = 1.5, 4  # a replica is far busier than another if it has over 1.5 times its requests + 4


class RoundRobin(BaseRouter):
    """Each replica in turn, in the order of their numbers."""

    def __init__(self, replicas: Iterable[int] = ()) -> None:
        super().__init__()
        self._up = sorted(replicas)
        self._next = 0

    def available(self, replica: int, up: bool) -> None:
        set_member(self._up, replica, up)

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        index = bisect_left(self._up, self._next)
        replica = self._up[index if index < len(self._up) else 0]
        self._next = replica + 1
        return replica


class Random(BaseRouter):
    """Any replica, with equal probability."""

    def __init__(self, replicas: int, seed: int) -> None:
        super().__init__()
        self._draws = UniformDraws(replicas, seed)

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        replica = self._draws.next()
        while replica in self.down:
            replica = self._draws.next()
        return replica


class LeastOutstanding(BaseRouter):
    """The replica with the fewest unfinished requests, the lowest number among equals."""

    looks_at_load = True

    def __init__(self, replicas: Iterable[int] = ()) -> None:
        super().__init__()
        self.loads = dict.fromkeys(replicas, 0)  # of all replicas
        self.ranking = Ranking(self.loads)  # of those that are available

    def available(self, replica: int, up: bool) -> None:
        if up:
            self.ranking.put(replica, self.loads.setdefault(replica, 0))
        else:
            self.ranking.remove(replica)

    def set_load(self, replica: int, requests: int) -> None:
        self.loads[replica] = requests
        self.ranking.update(replica, requests)

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        return self.ranking.first()


class PowerOfTwo(BaseRouter):
    """The less loaded of two replicas that are drawn for the request."""

    looks_at_load = True

    def __init__(self, pairs: Pairs) -> None:
        super().__init__()
        self._pairs = pairs
        self._loads: dict[int, int] = {}

    def available(self, replica: int, up: bool) -> None:
        self._pairs.available(replica, up)

    def set_load(self, replica: int, requests: int) -> None:
        self._loads[replica] = requests

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        first, second = self._pairs.pair(request)
        loads = self._loads
        return second if loads.get(second, 0) < loads.get(first, 0) else first


class Sticky(BaseRouter):
    """A session stays at home; another router finds a home for those that have none."""

    keeps_sessions = True

    def __init__(self, first: Router) -> None:
        super().__init__()
        self._first = first
        self.looks_at_load = first.looks_at_load

    def available(self, replica: int, up: bool) -> None:
        self._first.available(replica, up)

    def set_load(self, replica: int, requests: int) -> None:
        self._first.set_load(replica, requests)

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        return self._first.choose(request) if home is None else home


class StickySpill(LeastOutstanding):
    """A session stays at home unless home is far busier than the mean; then it goes to the least loaded replica."""

    def __init__(self, replicas: Iterable[int] = ()) -> None:
        super().__init__(replicas)
        self.total = 0  # unfinished requests

    def set_load(self, replica: int, requests: int) -> None:
        self.total += requests - self.loads.get(replica, 0)
        super().set_load(replica, requests)

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        if home is None or self.loads[home] > _FACTOR * self.total / len(self.ranking) + _SLACK:
            return self.ranking.first()
        return home


class PrefixAware(LeastOutstanding):
    """Home, else where the longest known prefix was sent last, else the least loaded replica.

    A replica that is far busier than the least loaded is skipped. Like routers in front of real engines, it remembers
    what it sent where and does not query engines.
    """

    def __init__(self, replicas: Iterable[int] = ()) -> None:
        super().__init__(replicas)
        self._sent_to: dict[int | str, int] = {}  # by name of a block

    def available(self, replica: int, up: bool) -> None:
        super().available(replica, up)
        if not up:
            self._sent_to = {name: holder for name, holder in self._sent_to.items() if holder != replica}

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        sent_to, loads = self._sent_to, self.loads
        replica = self.ranking.first()
        limit = loads[replica] * _FACTOR + _SLACK
        for name in request.names:
            holder = sent_to.get(name)
            if holder is None:
                break
            if loads[holder] <= limit:
                replica = holder
        if home is not None and loads[home] <= limit:
            replica = home
        for name in request.names:
            sent_to[name] = replica
        return replica

    def forget(self, name: int | str) -> None:
        """Drop a prefix that will not be requested again."""
        self._sent_to.pop(name, None)
