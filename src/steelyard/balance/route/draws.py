"""Reproducible random choices: the same seed gives the same draws."""

from __future__ import annotations

from hashlib import blake2b
from typing import Protocol

import numpy as np

from steelyard.balance.route.protocol import RoutedRequest
from steelyard.balance.route.ranking import set_member


class UniformDraws:
    """Integers below a bound, drawn in blocks, since a numpy call per draw would be slow."""

    def __init__(self, bound: int, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 0x52])
        self._bound = bound
        self._drawn: list[int] = []

    def next(self) -> int:
        if not self._drawn:
            self._drawn = self._rng.integers(self._bound, size=4096).tolist()
        return self._drawn.pop()


class Pairs(Protocol):
    """Draws two available replicas, different ones if there are several."""

    def available(self, replica: int, up: bool) -> None:
        """A replica has come up or gone."""

    def pair(self, request: RoutedRequest) -> tuple[int, int]:
        """The replicas to compare for a request. The first wins a tie."""


class SeededPairs:
    """Draws one pair after the other from a fixed number of replicas, all available at first."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._replicas = replicas
        self._down: set[int] = set()
        self._first = UniformDraws(replicas, seed)
        self._second = UniformDraws(max(replicas - 1, 1), seed + 1)

    def available(self, replica: int, up: bool) -> None:
        if up:
            self._down.discard(replica)
        else:
            self._down.add(replica)

    def pair(self, request: RoutedRequest) -> tuple[int, int]:
        first = self._first.next()
        while first in self._down:
            first = self._first.next()
        second = (first + 1 + self._second.next()) % self._replicas
        while second in self._down:
            second = (second + 1) % self._replicas
        return first, second


class HashedPairs:
    """Draws by request and turn, so that a pair depends only on them and on which replicas are up.

    The lower number comes first.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._up: list[int] = []

    def available(self, replica: int, up: bool) -> None:
        set_member(self._up, replica, up)

    def pair(self, request: RoutedRequest) -> tuple[int, int]:
        up, text = self._up, f"{self._seed}:{request.id}:{request.turn}"
        drawn = int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
        first = drawn % len(up)
        second = (first + 1 + (drawn >> 32) % max(1, len(up) - 1)) % len(up)
        return up[min(first, second)], up[max(first, second)]
