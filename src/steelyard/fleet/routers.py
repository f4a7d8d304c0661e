"""How a request finds its replica. A router sees requests and completions, never the inside of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np


class Router(Protocol):
    """Chooses a replica for each request, in order of submission."""

    looks_at_load: bool  # whether completions change its choices

    def choose(self, session: int, names: Sequence[int]) -> int:
        """The replica for a request of a session, whose leading blocks have these names."""
        ...

    def ended(self, replica: int) -> None:
        """A request that was sent to this replica has ended."""
        ...


class RoundRobin:
    """Each replica in turn."""

    looks_at_load = False

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._next = -1

    def choose(self, session: int, names: Sequence[int]) -> int:
        self._next = (self._next + 1) % self._replicas
        return self._next

    def ended(self, replica: int) -> None:
        pass


class Random:
    """Any replica, each as likely."""

    looks_at_load = False

    def __init__(self, replicas: int, seed: int) -> None:
        self._draws = _Draws(replicas, seed)

    def choose(self, session: int, names: Sequence[int]) -> int:
        return self._draws.next()

    def ended(self, replica: int) -> None:
        pass


class Sticky:
    """A session stays where its first request went; sessions go to each replica in turn."""

    looks_at_load = False

    def __init__(self, replicas: int) -> None:
        self._turn = RoundRobin(replicas)
        self._home: dict[int, int] = {}

    def choose(self, session: int, names: Sequence[int]) -> int:
        home = self._home.get(session)
        if home is None:
            home = self._home[session] = self._turn.choose(session, names)
        return home

    def ended(self, replica: int) -> None:
        pass


class LeastOutstanding:
    """The replica with the fewest unfinished requests, the lowest number among equals."""

    looks_at_load = True

    def __init__(self, replicas: int) -> None:
        self.load = [0] * replicas
        self._heap = [(0, i) for i in range(replicas)]

    def least(self) -> int:
        """The least loaded replica. Outdated heap entries are dropped as they surface."""
        heap, load = self._heap, self.load
        while heap[0][0] != load[heap[0][1]]:
            heappop(heap)
        return heap[0][1]

    def choose(self, session: int, names: Sequence[int]) -> int:
        replica = self.least()
        self.sent(replica)
        return replica

    def sent(self, replica: int) -> None:
        """One more request on this replica."""
        self.load[replica] += 1
        self._push(replica)

    def ended(self, replica: int) -> None:
        self.load[replica] -= 1
        self._push(replica)

    def _push(self, replica: int) -> None:
        heappush(self._heap, (self.load[replica], replica))
        if len(self._heap) > 8 * len(self.load) + 64:
            self._heap = [(load, i) for i, load in enumerate(self.load)]
            heapify(self._heap)


class PowerOfTwo:
    """The less loaded of two different replicas drawn at random."""

    looks_at_load = True

    def __init__(self, replicas: int, seed: int) -> None:
        self._load = [0] * replicas
        self._draws = _Draws(replicas, seed)
        self._others = _Draws(max(replicas - 1, 1), seed + 1)

    def choose(self, session: int, names: Sequence[int]) -> int:
        first = self._draws.next()
        second = (first + 1 + self._others.next()) % len(self._load)
        replica = second if self._load[second] < self._load[first] else first
        self._load[replica] += 1
        return replica

    def ended(self, replica: int) -> None:
        self._load[replica] -= 1


class PrefixAware:
    """Where the longest known prefix was last sent, unless that replica is much busier than the least loaded.

    As routers in front of real engines do, it remembers what it sent where rather than asking the engines.
    """

    looks_at_load = True
    SLACK, FACTOR = 4, 1.5

    def __init__(self, replicas: int) -> None:
        self._balance = LeastOutstanding(replicas)
        self._sent_to: dict[int, int] = {}

    def choose(self, session: int, names: Sequence[int]) -> int:
        sent_to = self._sent_to
        replica = self._balance.least()
        floor = self._balance.load[replica]
        for name in names:
            holder = sent_to.get(name)
            if holder is None:
                break
            if self._balance.load[holder] <= floor * self.FACTOR + self.SLACK:
                replica = holder
        for name in names:
            sent_to[name] = replica
        self._balance.sent(replica)
        return replica

    def ended(self, replica: int) -> None:
        self._balance.ended(replica)


class _Draws:
    """Uniform draws in blocks, since one call per draw would cost more than the simulation of a request."""

    def __init__(self, bound: int, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 0x52])
        self._bound = bound
        self._drawn: list[int] = []

    def next(self) -> int:
        if not self._drawn:
            self._drawn = self._rng.integers(self._bound, size=4096).tolist()
        return self._drawn.pop()


def make_router(name: str, replicas: int, seed: int) -> Router:
    """The router a scenario names."""
    routers: dict[str, Router] = {
        "round-robin": RoundRobin(replicas),
        "random": Random(replicas, seed),
        "sticky": Sticky(replicas),
        "least-outstanding": LeastOutstanding(replicas),
        "power-of-two": PowerOfTwo(replicas, seed),
        "prefix-aware": PrefixAware(replicas),
    }
    return routers[name]
