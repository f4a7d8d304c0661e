"""Two-level routers: they choose a pool, and the pool's own router chooses the replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, inf
from typing import NamedTuple

from steelyard.balance.route.protocol import RoutedRequest, Router
from steelyard.errors import UserError


class RoutedPool(NamedTuple):
    """A pool's replicas, by their numbers in the fleet, and the pool's router, which numbers them from 0."""

    replicas: Sequence[int]
    router: Router


class _Pools:
    """Forwards events to the router of the pool that they belong to."""

    keeps_sessions: bool = False

    def __init__(self, pools: Sequence[RoutedPool]) -> None:
        self._pools = pools
        self._place = {replica: (k, i) for k, pool in enumerate(pools) for i, replica in enumerate(pool.replicas)}
        self._there = [len(pool.replicas) for pool in pools]
        self.looks_at_load = any(pool.router.looks_at_load for pool in pools)
        self.awaits_first_tokens = any(pool.router.awaits_first_tokens for pool in pools)

    def available(self, replica: int, up: bool) -> None:
        k, i = self._place[replica]
        self._there[k] += 1 if up else -1
        self._pools[k].router.available(i, up)

    def first_token(self, request: RoutedRequest, replica: int, at: float) -> None:
        k, i = self._place[replica]
        self._pools[k].router.first_token(request, i, at)

    def set_load(self, replica: int, requests: int) -> None:
        k, i = self._place[replica]
        self._pools[k].router.set_load(i, requests)

    def ended(self, request: RoutedRequest, replica: int) -> None:
        k, i = self._place[replica]
        self._pools[k].router.ended(request, i)

    def session_ended(self, request: RoutedRequest) -> None:
        for pool in self._pools:
            pool.router.session_ended(request)

    def _choose_in(self, k: int, request: RoutedRequest, home: int | None) -> int:
        pool = self._pools[k]
        at, i = (k, None) if home is None else self._place[home]
        return pool.replicas[pool.router.choose(request, i if at == k else None)]


class ByModel(_Pools):
    """Each model has replicas of its own, and a router for them."""

    def __init__(self, pools: Mapping[str, RoutedPool]) -> None:
        super().__init__(list(pools.values()))
        self._models = {model: k for k, model in enumerate(pools)}

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        k = self._models.get(request.model)
        if k is None:
            known = ", ".join(sorted(self._models))
            raise UserError(f"request {request.id}: no pool serves model {request.model!r}; there are {known}")
        return self._choose_in(k, request, home)


class ByLoad(_Pools):
    """The pool with the fewest unfinished requests relative to its strength.

    ``strength`` is how much a pool can take compared with the others. It shrinks with every replica that goes down.
    """

    def __init__(self, pools: Sequence[RoutedPool], strength: Sequence[float]) -> None:
        super().__init__(pools)
        self._each = [total / len(pool.replicas) for pool, total in zip(pools, strength, strict=True)]
        self._load = [0] * len(pools)
        self.looks_at_load = True

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        loads = [
            (load + 1) / (each * there) if there else inf
            for load, each, there in zip(self._load, self._each, self._there, strict=True)
        ]
        k = loads.index(min(loads))
        self._load[k] += 1
        return self._choose_in(k, request, home)

    def ended(self, request: RoutedRequest, replica: int) -> None:
        self._load[self._place[replica][0]] -= 1
        super().ended(request, replica)


class ByWeight(_Pools):
    """Pools in turn, in proportion to their weights and evenly interleaved.

    Each request gives every pool its weight in credit; the pool with the most credit gets the request and pays the sum
    of all weights. A pool without replicas earns no credit, so it gets no burst of requests when it is back.
    """

    def __init__(self, pools: Sequence[RoutedPool], weights: Sequence[float]) -> None:
        super().__init__(pools)
        self._weights = weights
        self._credit = [0.0] * len(pools)

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        there = [k for k, replicas in enumerate(self._there) if replicas]
        for k in there:
            self._credit[k] += self._weights[k]
        chosen = max(there, key=lambda k: self._credit[k])  # the first among equals
        self._credit[chosen] -= fsum(self._weights[k] for k in there)
        return self._choose_in(chosen, request, home)
