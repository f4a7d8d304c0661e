"""Tiers of KV memory below the GPU's own: host memory, local disk, a remote store.

Blocks evicted from the GPU are written to the tier below, and blocks evicted there to the next one. A *write-through*
tier instead gets a copy of every block when it is computed. When a tier continues a request's prefix, the request
allocates blocks, waits until they are filled, and then runs.

The rules are those of vLLM's offloading connector. Only whole blocks are stored. Hits on the GPU come first. Blocks are
written after the scheduling that evicted them, or the step that computed them. Transfers in one direction are serial.
Blocks of lower tiers pass through host memory, where a copy stays. A request whose blocks are being fetched for another
one waits. A block is not stored if all blocks it could replace are in use.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steelyard.engine.kv import KVCache
    from steelyard.engine.request import Request

HOST = "host"


@dataclass
class TierLink:
    """One direction of a tier's link. Transfers are serial, so the end of one is known when it is requested."""

    bandwidth: float  # bytes per second
    latency: float = 0.0  # seconds until the first bytes arrive
    carried: float = 0.0  # bytes
    free: float = 0.0  # when all requested transfers have been sent

    def send(self, size: float, now: float) -> float:
        """Send ``size`` bytes; returns when the last of them arrives."""
        self.free = max(now, self.free) + size / self.bandwidth
        self.carried += size
        return self.free + self.latency


@dataclass(eq=False)
class Tier:
    """A store of blocks by name. A ``shared`` one serves many engines, which see only completely written blocks."""

    kind: str
    size: int  # blocks
    block_bytes: float
    read: TierLink
    write: TierLink
    through: bool = False
    shared: bool = False
    blocks: OrderedDict[int, float] = field(default_factory=OrderedDict)  # least recently used first, with when written
    in_use: Counter[int] = field(default_factory=Counter)  # being read, by how many
    stored: int = 0
    given_up: int = 0
    turned_away: int = 0

    def has(self, name: int, now: float) -> bool:
        """Whether a request can fetch a block from here."""
        since = self.blocks.get(name)
        return since is not None and (since <= now or not self.shared)

    def store(self, name: int, now: float, *, written: bool = False) -> int | None:
        """Store a block, and write it unless that has been done; returns the evicted block, if any."""
        gone = None
        if name in self.blocks:
            return None
        if len(self.blocks) >= self.size:
            gone = next(iter(self.blocks))
            if gone in self.in_use or self.blocks[gone] > now:
                self.turned_away += 1
                return None
            del self.blocks[gone]
            self.given_up += 1
        self.blocks[name] = now if written else self.write.send(self.block_bytes, now)
        self.stored += 1
        return gone

    def hold(self, names: Sequence[int]) -> None:
        """Protect blocks that will be read; the head of a prefix counts as used last."""
        for name in reversed(names):
            self.blocks.move_to_end(name)
            self.in_use[name] += 1

    def let_go(self, names: Sequence[int]) -> None:
        """Blocks have been read."""
        for name in names:
            self.in_use[name] -= 1
            if not self.in_use[name]:
                del self.in_use[name]


class TierFetch:
    """A fetch for one request: where its blocks come from, and which transfers have yet to start."""

    __slots__ = ("legs", "names", "request", "sources")

    def __init__(self, request: Request, names: Sequence[int], found: Sequence[Tier], gateway: Tier | None) -> None:
        self.request = request
        self.names = names
        self.sources: dict[Tier, list[int]] = {}
        for name, tier in zip(names, found, strict=True):
            self.sources.setdefault(tier, []).append(name)
        below = [(tier, len(own)) for tier, own in self.sources.items() if tier is not gateway]
        self.legs = [below] if below else []  # serial; all transfers of one leg run at once
        if gateway is not None:
            self.legs.append([(gateway, len(names))])


class Tiers:
    """The tiers below one engine's cache, nearest first, and the fetches from them."""

    above: KVCache

    def __init__(self, levels: Sequence[Tier], block_size: int) -> None:
        self.levels = tuple(tier for tier in levels if tier.size)
        self.block_size = block_size
        self.shared = any(tier.shared for tier in self.levels)
        self.through = any(tier.through for tier in self.levels)
        self.hits: Counter[str] = Counter()  # prompt tokens found at first admission, by kind of tier
        self.gone: list[int] = []  # names that the GPU has evicted since blocks were last written
        self.fresh: list[int] = []  # names of blocks that have been computed since then
        self.loads: list[tuple[float, int, TierFetch]] = []  # heap: when the current transfers end
        self._gateway = self.levels[0] if self.levels and self.levels[0].kind == HOST else None
        self._coming: set[int] = set()
        self._begun = 0

    # -- up -----------------------------------------------------------------------------------------------------

    def find(self, r: Request, hits: int, now: float) -> list[Tier] | None:
        """The tiers of the blocks after a request's first ``hits``; None if some are being fetched."""
        found: list[Tier] = []
        for name in r.keys[hits : (r.prompt + r.outputs - 1) // self.block_size]:
            tier = next((each for each in self.levels if each.has(name, now)), None)
            if tier is None:
                break
            if name in self._coming:
                return None
            found.append(tier)
        return found

    def load(self, r: Request, names: Sequence[int], found: Sequence[Tier], now: float) -> None:
        """Fetch blocks from the tiers that hold them, once all of them are written."""
        load = TierFetch(r, names, found, self._gateway)
        if not r.preemptions:
            for tier in found:
                self.hits[tier.kind] += self.block_size
        for tier, own in load.sources.items():
            tier.hold(own)
        self._coming.update(names)
        self._begun += 1
        there = max(tier.blocks[name] for tier, own in load.sources.items() for name in own)
        if there > now:
            heappush(self.loads, (there, self._begun, load))
        else:
            self._go_on(load, self._begun, now)

    def arrived(self, now: float) -> list[Request]:
        """The requests whose blocks have arrived by now; also starts the next transfers."""
        done: list[Request] = []
        while self.loads and self.loads[0][0] <= now:
            _, number, load = heappop(self.loads)
            if load.legs:
                self._go_on(load, number, now)
                continue
            for tier, own in load.sources.items():
                tier.let_go(own)
            self._coming.difference_update(load.names)
            done.append(load.request)
        return done

    def _go_on(self, load: TierFetch, number: int, now: float) -> None:
        leg = load.legs.pop(0)
        if leg[0][0] is self._gateway:
            for tier, own in load.sources.items():
                if tier is not self._gateway:
                    self._promote(own, now)
        end = max(tier.read.send(blocks * tier.block_bytes, now) for tier, blocks in leg)
        heappush(self.loads, (end, number, load))

    def _promote(self, names: Sequence[int], now: float) -> None:
        """Store blocks from lower tiers in host memory."""
        assert self._gateway is not None
        for name in reversed(names):
            gone = self._gateway.store(name, now, written=True)
            if gone is not None:
                self._sink(gone, 1, now)

    def restart(self) -> None:
        """The engine has crashed: drop its fetches and what its host's memory held."""
        for _, _, load in self.loads:
            for tier, own in load.sources.items():
                tier.let_go(own)
        for tier in self.levels:
            if tier.kind == HOST:
                tier.blocks.clear()
        for each in (self.loads, self._coming, self.gone, self.fresh):
            each.clear()

    # -- down ---------------------------------------------------------------------------------------------------

    def write_back(self, now: float) -> None:
        """Write the blocks that the GPU has evicted."""
        for name in self.gone:
            self._sink(name, 0, now)
        self.gone.clear()

    def write_through(self, now: float) -> None:
        """Write computed blocks to write-through tiers."""
        for name in self.fresh:
            for level, tier in enumerate(self.levels):
                if tier.through:
                    gone = tier.store(name, now)
                    if gone is not None:
                        self._sink(gone, level + 1, now)
        self.fresh.clear()

    def _sink(self, name: int, level: int, now: float) -> None:
        """Write a block to a tier, the block it evicts to the next, and so on."""
        for tier in self.levels[level:]:
            if tier.through:
                return  # it had its copy when the block was computed
            gone = tier.store(name, now)
            if gone is None:
                return
            name = gone
