"""Routers of routers: which replicas can serve a request, or which pool of them should, comes before which replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from steelyard.errors import UserError
from steelyard.fleet.routers.protocol import Asked, Router


class Part(NamedTuple):
    """Some of a fleet's replicas, by their numbers there, and the router among them, which numbers them from 0."""

    replicas: Sequence[int]
    router: Router


class _Parted:
    """Tells each part's router what becomes of its requests and replicas."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._place = {replica: (k, i) for k, part in enumerate(parts) for i, replica in enumerate(part.replicas)}
        self._there = [len(part.replicas) for part in parts]
        self.looks_at_load = any(part.router.looks_at_load for part in parts)
        self.awaits_first_tokens = any(part.router.awaits_first_tokens for part in parts)

    def available(self, replica: int, up: bool) -> None:
        k, i = self._place[replica]
        self._there[k] += 1 if up else -1
        self._parts[k].router.available(i, up)

    def first_token(self, asked: Asked, replica: int, at: float) -> None:
        k, i = self._place[replica]
        self._parts[k].router.first_token(asked, i, at)

    def ended(self, asked: Asked, replica: int) -> None:
        k, i = self._place[replica]
        self._parts[k].router.ended(asked, i)

    def _choose_in(self, k: int, asked: Asked) -> int:
        part = self._parts[k]
        return part.replicas[part.router.choose(asked)]


class ByModel(_Parted):
    """Each model has replicas of its own, and a router among them."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        super().__init__(list(parts.values()))
        self._models = {model: k for k, model in enumerate(parts)}

    def choose(self, asked: Asked) -> int:
        k = self._models.get(asked.model)
        if k is None:
            known = ", ".join(sorted(self._models))
            raise UserError(f"request {asked.index}: no pool serves model {asked.model!r}; there are {known}")
        return self._choose_in(k, asked)


class ByLoad(_Parted):
    """The pool with the fewest unfinished requests for its strength, then its own router.

    ``strength`` is what a pool can bear next to the others; one that has lost replicas bears so much less.
    """

    def __init__(self, parts: Sequence[Part], strength: Sequence[float]) -> None:
        super().__init__(parts)
        self._each = [bears / len(part.replicas) for part, bears in zip(parts, strength, strict=True)]
        self._load = [0] * len(parts)
        self.looks_at_load = True

    def choose(self, asked: Asked) -> int:
        loads = [
            (load + 1) / (each * there) if there else inf
            for load, each, there in zip(self._load, self._each, self._there, strict=True)
        ]
        k = loads.index(min(loads))
        self._load[k] += 1
        return self._choose_in(k, asked)

    def ended(self, asked: Asked, replica: int) -> None:
        self._load[self._place[replica][0]] -= 1
        super().ended(asked, replica)


class ByWeight(_Parted):
    """Pools in turn, each as often as its weight says and as evenly spread as that allows, then its own router.

    Each request gives every pool its weight in credit, and the one with most pays for all. A pool without replicas
    earns nothing, so it has nothing to catch up on when it is back.
    """

    def __init__(self, parts: Sequence[Part], weights: Sequence[float]) -> None:
        super().__init__(parts)
        self._weights = weights
        self._credit = [0.0] * len(parts)

    def choose(self, asked: Asked) -> int:
        there = [k for k, replicas in enumerate(self._there) if replicas]
        for k in there:
            self._credit[k] += self._weights[k]
        chosen = max(there, key=lambda k: self._credit[k])  # the first among equals
        self._credit[chosen] -= sum(self._weights[k] for k in there)
        return self._choose_in(chosen, asked)
