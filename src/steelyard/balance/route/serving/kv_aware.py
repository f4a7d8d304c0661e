"""A router that weighs the cached prefix on a replica against its load."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import islice

import numpy as np

from steelyard.balance.route.protocol import BaseRouter, RoutedRequest
from steelyard.balance.route.serving.settings import RouterSettings

_GONE = 1 << 40  # blocks in use on a replica that is down: more than any other can have
_ONE = 1 << 32  # weight of the best replica when they are drawn


class KvAware(BaseRouter):
    """The replica with the least work: blocks to compute (this request's and those waiting) times a weight, plus
    blocks in use.

    So a cached prefix is traded against load, as in Dynamo's router. A request uses the blocks of its prompt while it
    runs, shared or not, since its attention reads them all. Equals go to the replica with the fewest cached blocks,
    then to the lowest number. With a temperature, replicas are drawn by the softmax of their costs, scaled to 0 for the
    best and 1 for the worst.
    """

    looks_at_load = True
    awaits_first_tokens = True

    def __init__(self, replicas: int, seed: int, settings: RouterSettings) -> None:
        super().__init__()
        self._settings = settings
        self._caches = _Caches(replicas, settings.cache_blocks)
        self._ranking = _Ranking(replicas)
        self._rng = np.random.default_rng([seed, 0x53])
        self._waiting = [0] * replicas  # blocks to compute before first tokens
        self._active = [0] * replicas
        self._to_compute: dict[int | str, int] = {}  # blocks, by request without a first token

    def available(self, replica: int, up: bool) -> None:
        super().available(replica, up)
        self._caches.forget(replica)
        self._add(replica, 0, -_GONE if up else _GONE)

    def choose(self, request: RoutedRequest, home: int | None = None) -> int:
        blocks = self._blocks(request)
        overlaps = self._caches.overlaps(request.names)
        replica = self._draw(overlaps) if self._settings.temperature else self._best(blocks, overlaps)
        overlap = next((depth for depth, mask in overlaps if mask >> replica & 1), 0)
        self._to_compute[request.id] = blocks - overlap
        self._caches.keep(request.names, replica)
        self._add(replica, blocks - overlap, blocks)
        return replica

    def first_token(self, request: RoutedRequest, replica: int, at: float) -> None:
        self._add(replica, -self._to_compute.pop(request.id, 0), 0)

    def ended(self, request: RoutedRequest, replica: int) -> None:
        self._add(replica, -self._to_compute.pop(request.id, 0), -self._blocks(request))

    def _blocks(self, request: RoutedRequest) -> int:
        return -(-request.prompt // self._settings.block_size)

    def _add(self, replica: int, waiting: int, active: int) -> None:
        self._waiting[replica] += waiting
        self._active[replica] += active
        cost = self._settings.overlap_weight * self._waiting[replica] + self._active[replica]
        self._ranking.put(replica, cost, self._caches.held(replica))

    def _best(self, blocks: int, overlaps: list[tuple[int, int]]) -> int:
        """Replicas with equally many cached blocks differ by load alone, so only the first of each kind is compared."""
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
        shares = np.rint(weights * _ONE).astype(np.int64).cumsum()  # whole numbers add up to the same on every machine
        return int(np.searchsorted(shares, int(self._rng.random() * int(shares[-1])), side="right"))


class _Caches:
    """What each replica has cached, by what was sent there: the blocks that were used last.

    A set of replicas is an integer with a bit for each, so a prefix is looked up for all of them at once.
    """

    def __init__(self, replicas: int, capacity: int | None) -> None:
        self._everyone = (1 << replicas) - 1
        self._capacity = capacity
        self._holders: dict[int | str, int] = {}  # by block
        self._kept: list[dict[int | str, None]] = [{} for _ in range(replicas)]  # least recently used first

    def held(self, replica: int) -> int:
        """Blocks on a replica."""
        return len(self._kept[replica])

    def forget(self, replica: int) -> None:
        """A replica has lost its cache."""
        for name in self._kept[replica]:
            self._drop(name, 1 << replica)
        self._kept[replica].clear()

    def _drop(self, name: int | str, bit: int) -> None:
        self._holders[name] ^= bit
        if not self._holders[name]:
            del self._holders[name]

    def overlaps(self, names: Sequence[int | str]) -> list[tuple[int, int]]:
        """(number of leading blocks, replicas that hold exactly that many), without replicas that hold none."""
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

    def keep(self, names: Sequence[int | str], replica: int) -> None:
        """A replica has computed these blocks. As in engines, the end of a prompt is evicted before its beginning."""
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
        """The first of some replicas. A few are compared with each other; for many, the order is searched."""
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
