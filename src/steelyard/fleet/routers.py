"""How a request finds its replica. A router sees requests and what becomes of them, never the inside of an engine."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import NamedTuple, Protocol

import numpy as np

from steelyard.errors import UserError

GONE = 1 << 40  # requests on a replica that is not there: more than any other can have


@dataclass(slots=True)  # not frozen: one is made for every request, and freezing would take three times as long
class Asked:
    """What a router may know of a request. How long the answer will be is not among it, since nobody knows."""

    index: int
    session: int
    names: Sequence[int]  # of the leading blocks that others may share
    prompt: int
    priority: int = 0
    at: float = 0.0  # when it was asked
    model: str = ""


class Router(Protocol):
    """Chooses a replica for each request, in order of submission."""

    @property
    def looks_at_load(self) -> bool:
        """Whether completions change its choices."""
        ...

    @property
    def awaits_first_tokens(self) -> bool:
        """Whether it wants to be told of first tokens; one that is not told takes prompts for done when all is."""
        ...

    def available(self, replica: int, up: bool) -> None:
        """A replica has gone, and all it held with it; or it is there again. All are there to begin with."""
        ...

    def choose(self, asked: Asked) -> int:
        """The replica for a request; one at least must be there."""
        ...

    def first_token(self, asked: Asked, replica: int, at: float) -> None:
        """A request's prompt is done: its first token came at this second."""
        ...

    def ended(self, asked: Asked, replica: int) -> None:
        """A request that was sent to this replica has ended."""
        ...


class _Heedless:
    """What a router is by default: nothing that happens to requests changes its mind."""

    looks_at_load = False
    awaits_first_tokens = False
    down: frozenset[int] = frozenset()  # replicas that are not there

    def available(self, replica: int, up: bool) -> None:
        self.down = self.down - {replica} if up else self.down | {replica}

    def first_token(self, asked: Asked, replica: int, at: float) -> None:
        pass

    def ended(self, asked: Asked, replica: int) -> None:
        pass


class RoundRobin(_Heedless):
    """Each replica in turn."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._next = -1

    def choose(self, asked: Asked) -> int:
        self._next = (self._next + 1) % self._replicas
        while self._next in self.down:
            self._next = (self._next + 1) % self._replicas
        return self._next


class Random(_Heedless):
    """Any replica, each as likely."""

    def __init__(self, replicas: int, seed: int) -> None:
        self._draws = _Draws(replicas, seed)

    def choose(self, asked: Asked) -> int:
        replica = self._draws.next()
        while replica in self.down:
            replica = self._draws.next()
        return replica


class Sticky(_Heedless):
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


class LeastOutstanding(_Heedless):
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


class PowerOfTwo(_Heedless):
    """The less loaded of two different replicas drawn at random."""

    looks_at_load = True

    def __init__(self, replicas: int, seed: int) -> None:
        self._load = [0] * replicas
        self._draws = _Draws(replicas, seed)
        self._others = _Draws(max(replicas - 1, 1), seed + 1)

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


class PrefixAware(_Heedless):
    """Where the longest known prefix was last sent, unless that replica is much busier than the least loaded.

    As routers in front of real engines do, it remembers what it sent where rather than asking the engines.
    """

    looks_at_load = True
    SLACK, FACTOR = 4, 1.5

    def __init__(self, replicas: int) -> None:
        self._balance = LeastOutstanding(replicas)
        self._sent_to: dict[int, int] = {}

    def available(self, replica: int, up: bool) -> None:
        self._balance.available(replica, up)
        if not up:
            self._sent_to = {name: holder for name, holder in self._sent_to.items() if holder != replica}

    def choose(self, asked: Asked) -> int:
        sent_to = self._sent_to
        replica = self._balance.least()
        floor = self._balance.load[replica]
        for name in asked.names:
            holder = sent_to.get(name)
            if holder is None:
                break
            if self._balance.load[holder] <= floor * self.FACTOR + self.SLACK:
                replica = holder
        for name in asked.names:
            sent_to[name] = replica
        self._balance.sent(replica)
        return replica

    def ended(self, asked: Asked, replica: int) -> None:
        self._balance.ended(asked, replica)


class StickySpill(_Heedless):
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


class KvAware(_Heedless):
    """The least work: blocks to compute there, now and already waiting, times a weight, plus blocks in use there.

    So a cached prefix counts against load as in Dynamo's router. A request uses the blocks of its prompt while it runs,
    shared or not, since each one's attention reads them. Equals go to who has the least in its cache, then to the
    lowest number. With a temperature replicas are drawn by the softmax of their cost on a scale from best to worst.
    """

    looks_at_load = True
    awaits_first_tokens = True

    def __init__(self, replicas: int, seed: int, settings: RouterSettings) -> None:
        self._settings = settings
        self._caches = _Caches(replicas, settings.cache_blocks)
        self._ranking = _Ranking(replicas)
        self._rng = np.random.default_rng([seed, 0x53])
        self._waiting = [0] * replicas  # blocks to compute before first tokens
        self._active = [0] * replicas
        self._to_compute: dict[int, int] = {}  # by request, until its first token

    def available(self, replica: int, up: bool) -> None:
        super().available(replica, up)
        self._caches.forget(replica)
        self._add(replica, 0, -GONE if up else GONE)

    def choose(self, asked: Asked) -> int:
        blocks = self._blocks(asked)
        overlaps = self._caches.overlaps(asked.names)
        replica = self._draw(overlaps) if self._settings.temperature else self._best(blocks, overlaps)
        overlap = next((depth for depth, mask in overlaps if mask >> replica & 1), 0)
        self._to_compute[asked.index] = blocks - overlap
        self._caches.keep(asked.names, replica)
        self._add(replica, blocks - overlap, blocks)
        return replica

    def first_token(self, asked: Asked, replica: int, at: float) -> None:
        self._add(replica, -self._to_compute.pop(asked.index, 0), 0)

    def ended(self, asked: Asked, replica: int) -> None:
        self._add(replica, -self._to_compute.pop(asked.index, 0), -self._blocks(asked))

    def _blocks(self, asked: Asked) -> int:
        return -(-asked.prompt // self._settings.block_size)

    def _add(self, replica: int, waiting: int, active: int) -> None:
        self._waiting[replica] += waiting
        self._active[replica] += active
        cost = self._settings.overlap_weight * self._waiting[replica] + self._active[replica]
        self._ranking.put(replica, cost, self._caches.held(replica))

    def _best(self, blocks: int, overlaps: list[tuple[int, int]]) -> int:
        """Replicas with equally many blocks differ by load alone, so only the first of each kind is compared."""
        ranking, weight = self._ranking, self._settings.overlap_weight
        candidates = [(0, ranking.order[0]), *((depth, ranking.first(mask)) for depth, mask in overlaps)]
        return min((rank[0] + weight * (blocks - depth), *rank) for depth, rank in candidates)[-1]

    def _draw(self, overlaps: list[tuple[int, int]]) -> int:
        costs = np.array([rank[0] for rank in self._ranking.ranks])
        for depth, mask in overlaps:
            holders = np.frombuffer(mask.to_bytes(-(-len(costs) // 8), "little"), dtype=np.uint8)
            there = np.unpackbits(holders, count=len(costs), bitorder="little")
            costs -= self._settings.overlap_weight * depth * there
        costs -= costs.min()
        gone = list(self.down)
        costs[gone] = 0.0
        weights = np.exp(-costs / ((costs.max() or 1.0) * self._settings.temperature))
        weights[gone] = 0.0
        shares = np.cumsum(weights)
        return min(int(np.searchsorted(shares, self._rng.random() * shares[-1], side="right")), len(shares) - 1)


class SloAware(_Heedless):
    """The busiest replica that is still foretold to give the first token in time, so that others keep their room.

    The forecast is what was seen so far, later counting more: seconds by prompt tokens without a first token on the
    replica and by its unfinished requests, the new one among both. Where none would be in time, and as long as nothing
    has been seen, the least busy one. Only the first token is promised; cached prefixes show as a faster replica.
    """

    looks_at_load = True
    awaits_first_tokens = True

    def __init__(self, replicas: int, settings: RouterSettings) -> None:
        self._ttft = settings.ttft
        self._load = np.zeros((2, replicas))  # prompt tokens without a first token, unfinished requests
        self._forecast = _Forecast()
        self._before: dict[int, tuple[float, float]] = {}  # by request without a first token: the load it joined

    def available(self, replica: int, up: bool) -> None:
        super().available(replica, up)
        self._load[:, replica] += -GONE if up else GONE

    def choose(self, asked: Asked) -> int:
        by_token, by_request = self._forecast.seconds
        tokens, requests = self._load[0] + asked.prompt, self._load[1] + 1
        seconds = by_token * tokens + by_request * requests
        in_time = seconds <= self._ttft
        if not self._forecast.seen:
            replica = int(np.lexsort((requests, tokens))[0])
        elif in_time.any():
            replica = int(np.where(in_time, seconds, -1.0).argmax())
        else:
            replica = int(seconds.argmin())
        self._before[asked.index] = float(tokens[replica]), float(requests[replica])
        self._load[0, replica] += asked.prompt
        self._load[1, replica] += 1
        return replica

    def first_token(self, asked: Asked, replica: int, at: float) -> None:
        joined = self._before.pop(asked.index, None)
        if joined is not None:
            self._load[0, replica] -= asked.prompt
            self._forecast.learn(*joined, at - asked.at)

    def ended(self, asked: Asked, replica: int) -> None:
        if self._before.pop(asked.index, None) is not None:
            self._load[0, replica] -= asked.prompt
        self._load[1, replica] -= 1


class Part(NamedTuple):
    """Some of a fleet's replicas, numbered from ``first``, and the router among them, which numbers them from 0."""

    first: int
    replicas: int
    router: Router


class ByModel:
    """Each model has replicas of its own, and a router among them."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = dict(parts)
        self.looks_at_load = any(part.router.looks_at_load for part in parts.values())
        self.awaits_first_tokens = any(part.router.awaits_first_tokens for part in parts.values())

    def available(self, replica: int, up: bool) -> None:
        for part in self._parts.values():
            if part.first <= replica < part.first + part.replicas:
                part.router.available(replica - part.first, up)

    def choose(self, asked: Asked) -> int:
        part = self._parts.get(asked.model)
        if part is None:
            known = ", ".join(sorted(self._parts))
            raise UserError(f"request {asked.index}: no pool serves model {asked.model!r}; there are {known}")
        return part.first + part.router.choose(asked)

    def first_token(self, asked: Asked, replica: int, at: float) -> None:
        part = self._parts[asked.model]
        part.router.first_token(asked, replica - part.first, at)

    def ended(self, asked: Asked, replica: int) -> None:
        part = self._parts[asked.model]
        part.router.ended(asked, replica - part.first)


class ByPool:
    """Pools that serve alike: the one with the fewest unfinished requests for its strength, then its own router.

    ``strength`` is what a pool can bear next to the others, such as its replicas times their speed.
    """

    looks_at_load = True

    def __init__(self, parts: Sequence[Part], strength: Sequence[float]) -> None:
        self._parts = sorted(zip(parts, strength, strict=True), key=lambda each: each[0].first)
        self._firsts = [part.first for part, _ in self._parts]
        self._load = [0] * len(self._parts)
        self._gone = [0] * len(self._parts)  # replicas that are not there
        self.awaits_first_tokens = any(part.router.awaits_first_tokens for part in parts)

    def available(self, replica: int, up: bool) -> None:
        pool = self._pool(replica)
        self._gone[pool] += -1 if up else 1
        part = self._parts[pool][0]
        part.router.available(replica - part.first, up)

    def choose(self, asked: Asked) -> int:
        loads = [
            (load + 1) / (strength * (1 - gone / part.replicas)) if gone < part.replicas else inf
            for load, gone, (part, strength) in zip(self._load, self._gone, self._parts, strict=True)
        ]
        pool = loads.index(min(loads))
        self._load[pool] += 1
        part = self._parts[pool][0]
        return part.first + part.router.choose(asked)

    def first_token(self, asked: Asked, replica: int, at: float) -> None:
        part = self._parts[self._pool(replica)][0]
        part.router.first_token(asked, replica - part.first, at)

    def ended(self, asked: Asked, replica: int) -> None:
        pool = self._pool(replica)
        self._load[pool] -= 1
        part = self._parts[pool][0]
        part.router.ended(asked, replica - part.first)

    def _pool(self, replica: int) -> int:
        return bisect_right(self._firsts, replica) - 1


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


class _Caches:
    """What each replica holds, as far as one knows who sends it everything: the last so many blocks.

    Sets of replicas are bits of an integer, so a prefix is looked up for all of them at once.
    """

    def __init__(self, replicas: int, capacity: int | None) -> None:
        self._everyone = (1 << replicas) - 1
        self._capacity = capacity
        self._holders: dict[int, int] = {}  # by block
        self._kept: list[dict[int, None]] = [{} for _ in range(replicas)]  # the longest unused first

    def held(self, replica: int) -> int:
        """Blocks on a replica."""
        return len(self._kept[replica])

    def forget(self, replica: int) -> None:
        """A replica holds nothing any more."""
        for name in self._kept[replica]:
            self._drop(name, 1 << replica)
        self._kept[replica].clear()

    def _drop(self, name: int, bit: int) -> None:
        self._holders[name] ^= bit
        if not self._holders[name]:
            del self._holders[name]

    def overlaps(self, names: Sequence[int]) -> list[tuple[int, int]]:
        """(leading blocks, the replicas that hold just so many of them), for all replicas that hold any."""
        found: list[tuple[int, int]] = []
        mask, depth = self._everyone, 0
        for depth, name in enumerate(names):
            still = mask & self._holders.get(name, 0)
            if depth and still != mask:
                found.append((depth, mask ^ still))
            mask = still
            if not mask:
                return found
        return [*found, (depth + 1, mask)] if names else found

    def keep(self, names: Sequence[int], replica: int) -> None:
        """A replica has got these blocks; as in engines the end of a prompt goes before its beginning."""
        kept, holders, bit = self._kept[replica], self._holders, 1 << replica
        for name in reversed(names):
            if name in kept:
                del kept[name]
            else:
                holders[name] = holders.get(name, 0) | bit
            kept[name] = None
        if self._capacity is not None and len(kept) > self._capacity:
            for name in list(islice(kept, len(kept) - self._capacity)):
                del kept[name]
                self._drop(name, bit)


_Rank = tuple[float, int, int]  # (cost, blocks held, replica)


class _Ranking:
    """All replicas in order of cost, then of blocks held, then of number."""

    def __init__(self, replicas: int) -> None:
        self.ranks: list[_Rank] = [(0.0, 0, i) for i in range(replicas)]
        self.order = list(self.ranks)

    def put(self, replica: int, cost: float, held: int) -> None:
        """A replica's cost has changed."""
        del self.order[bisect_left(self.order, self.ranks[replica])]
        rank = self.ranks[replica] = cost, held, replica
        insort(self.order, rank)

    def first(self, mask: int) -> _Rank:
        """The first of some replicas: few are compared, of many one comes up soon."""
        if mask.bit_count() ** 2 < len(self.order):
            return min(self.ranks[replica] for replica in _members(mask))
        return next(rank for rank in self.order if mask >> rank[-1] & 1)


def _members(mask: int) -> list[int]:
    """The numbers of the bits that are set."""
    members = []
    while mask:
        lowest = mask & -mask
        members.append(lowest.bit_length() - 1)
        mask ^= lowest
    return members


class _Forecast:
    """Seconds by two loads, fitted to what was seen by least squares; what lies back fades."""

    FADE = 0.98  # of its weight is left to an observation when the next one comes

    def __init__(self) -> None:
        self.seen = False
        self.seconds = 0.0, 0.0  # for one of each load
        self._sums: tuple[float, ...] = (0.0,) * 5

    def learn(self, x: float, y: float, seconds: float) -> None:
        """Loads x and y took so many seconds."""
        products = x * x, x * y, y * y, x * seconds, y * seconds
        self._sums = tuple(self.FADE * old + new for old, new in zip(self._sums, products, strict=True))
        xx, xy, yy, xs, ys = self._sums
        determinant = xx * yy - xy * xy
        self.seen = True
        self.seconds = xs / xx, 0.0  # what is seen of one load alone, or of both in one proportion
        if determinant > 1e-9 * xx * yy:
            by_x, by_y = (xs * yy - ys * xy) / determinant, (ys * xx - xs * xy) / determinant
            if by_x < 0:
                self.seconds = 0.0, ys / yy
            elif by_y > 0:
                self.seconds = by_x, by_y


@dataclass(frozen=True)
class RouterSettings:
    """What routers may want to know besides the number of replicas."""

    block_size: int = 16  # tokens of a KV block
    cache_blocks: int | None = None  # what a replica's cache holds; None: all that was ever sent
    overlap_weight: float = 1.0  # of a block to compute against one in use
    temperature: float = 0.0  # 0: always the best
    ttft: float = 1.0  # seconds in which the first token should come


_DEFAULTS = RouterSettings()


def make_router(name: str, replicas: int, seed: int, settings: RouterSettings = _DEFAULTS) -> Router:
    """The router a scenario names."""
    routers: dict[str, Callable[[], Router]] = {
        "round-robin": lambda: RoundRobin(replicas),
        "random": lambda: Random(replicas, seed),
        "sticky": lambda: Sticky(replicas),
        "sticky-spill": lambda: StickySpill(replicas),
        "least-outstanding": lambda: LeastOutstanding(replicas),
        "power-of-two": lambda: PowerOfTwo(replicas, seed),
        "prefix-aware": lambda: PrefixAware(replicas),
        "kv-aware": lambda: KvAware(replicas, seed, settings),
        "slo-aware": lambda: SloAware(replicas, settings),
    }
    return routers[name]()
