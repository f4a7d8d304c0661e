"""Routers that know of a request no more than its session: in turn, at random, by sessions, by load."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from steelyard.fleet.routers.protocol import GONE, Asked, Heedless


class RoundRobin(Heedless):
    """Each replica in turn."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._next = -1

    def choose(self, asked: Asked) -> int:
        self._next = (self._next + 1) % self._replicas
        while self._next in self.down:
            self._next = (self._next + 1) % self._replicas
        return self._next


class Random(Heedless):
    """Any replica, each as likely."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._draws = Draws(replicas, seed)

    def choose(self, asked: Asked) -> int:
        replica = self._draws.next()
        while replica in self.down:
            replica = self._draws.next()
        return replica


class Sticky(Heedless):
    """A session stays where its first request went, as long as that is there; sessions go to each replica in turn."""

    def __init__(self, replicas: int) -> None:
        self._turn = RoundRobin(replicas)
        self._home: dict[int, int] = {}

    def choose(self, asked: Asked) -> int:
        home = self._home.get(asked.session)
        if home is None or home in self.down:
            home = self._home[asked.session] = self._turn.choose(asked)
        return home

    def available(self, replica: int, up: bool) -> None:
        super().available(replica, up)
        self._turn.available(replica, up)


class LeastOutstanding(Heedless):
    """The replica with the fewest unfinished requests, the lowest number among equals."""

    looks_at_load = True

    def __init__(self, replicas: int) -> None:
        self.load = [0] * replicas  # of one that is not there: more than any other's
        self._heap = [(0, i) for i in range(replicas)]

    def least(self) -> int:
        """The least loaded replica. Outdated heap entries are dropped as they surface."""
        heap, load = self._heap, self.load
        while heap[0][0] != load[heap[0][1]]:
            heappop(heap)
        return heap[0][1]

    def available(self, replica: int, up: bool) -> None:
        super().available(replica, up)
        self.load[replica] += -GONE if up else GONE
        self._push(replica)

    def choose(self, asked: Asked) -> int:
        replica = self.least()
        self.sent(replica)
        return replica

    def sent(self, replica: int) -> None:
        """One more request on this replica."""
        self.load[replica] += 1
        self._push(replica)

    def ended(self, asked: Asked, replica: int) -> None:
        self.load[replica] -= 1
        self._push(replica)

    def _push(self, replica: int) -> None:
        heappush(self._heap, (self.load[replica], replica))
        if len(self._heap) > 8 * len(self.load) + 64:
            self._heap = [(load, i) for i, load in enumerate(self.load)]
            heapify(self._heap)


class PowerOfTwo(Heedless):
    """The less loaded of two different replicas drawn at random."""

    looks_at_load = True

    def __init__(self, replicas: int, seed: int) -> None:
        self._load = [0] * replicas
        self._draws = Draws(replicas, seed)
        self._others = Draws(max(replicas - 1, 1), seed + 1)

    def choose(self, asked: Asked) -> int:
        first = self._draws.next()
        while first in self.down:
            first = self._draws.next()
        second = (first + 1 + self._others.next()) % len(self._load)
        while second in self.down:
            second = (second + 1) % len(self._load)
        replica = second if self._load[second] < self._load[first] else first
        self._load[replica] += 1
        return replica

    def ended(self, asked: Asked, replica: int) -> None:
        self._load[replica] -= 1


class StickySpill(Heedless):
    """A session stays at its home, unless that is much busier than the mean: then it moves to the least loaded."""

    looks_at_load = True
    SLACK, FACTOR = 4, 1.5

    def __init__(self, replicas: int) -> None:
        self._balance = LeastOutstanding(replicas)
        self._home: dict[int, int] = {}
        self._total = 0

    def available(self, replica: int, up: bool) -> None:
        self._balance.available(replica, up)

    def choose(self, asked: Asked) -> int:
        load = self._balance.load
        there = len(load) - len(self._balance.down)
        home = self._home.get(asked.session)
        if home is None or load[home] > self.FACTOR * self._total / there + self.SLACK:
            home = self._home[asked.session] = self._balance.least()
        self._balance.sent(home)
        self._total += 1
        return home

    def ended(self, asked: Asked, replica: int) -> None:
        self._balance.ended(asked, replica)
        self._total -= 1


class Draws:
    """Uniform draws in blocks, since one call per draw would cost more than the simulation of a request."""

    def __init__(self, bound: int, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 0x52])
        self._bound = bound
        self._drawn: list[int] = []

    def next(self) -> int:
        if not self._drawn:
            self._drawn = self._rng.integers(self._bound, size=4096).tolist()
        return self._drawn.pop()
