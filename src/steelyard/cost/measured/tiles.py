"""How attention kernels divide a batch into tiles, and how long the tiles take.

FlashAttention cuts a batch into tiles: for each request and KV head, some rows of queries (tokens times the query heads
that share keys) against all their keys, block by block. Long tiles are split over the keys into equal parts. The GPU's
multiprocessors take tiles in the order of the batch. So a batch's time depends on more than bytes and arithmetic: one
more request can start another wave, and a long tile that comes last delays the end. This module simulates the tiles;
measured points then correct the level (`attention.py`). Small tiles, of decodes or little more, are bound by memory,
and the speed of each depends on the others (`readers.py`).

The costs are microseconds on an H200, fitted to its profile for each head size. The limits are FlashAttention 3's and
vLLM's.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from math import ceil, gcd
from typing import NamedTuple

import numpy as np

from steelyard.cost.measured.readers import all_read
from steelyard.cost.source import Floats

_TENTHS = 11  # tenths of its even share of blocks that a split may have
MOST_SPLITS = 32  # in steps that fit a captured graph
GRAPH_TOKENS = 512  # vLLM's largest captured size
SMALL_ROWS = 64  # query rows per tile up to which tiles are small
_SPLIT_BELOW = 0.8  # larger steps are split if fewer than this share of the multiprocessors would be busy
_GOOD_ENOUGH = 0.85  # of the best occupancy of the last wave
_FEW_BLOCKS = 4  # of keys, up to which larger steps are not split


class HeadShape(NamedTuple):
    """Query heads, key heads and head size of one GPU's share of a model."""

    heads: int
    kv_heads: int
    dim: int

    @property
    def sharing(self) -> int:
        """Query heads per KV head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class TileCosts:
    """Sizes of a tile, and microseconds."""

    rows: int
    keys: int  # of a block
    small_keys: int  # of a block in batches of small tiles: of decodes, or little more
    small_tile: float  # start and end of a small tile
    streamed_block: float  # a block of small_keys from memory, while all multiprocessors read
    lone_block: float  # the same while few read
    tile: float  # start and end of a tile in other batches
    block: float  # a block of keys against all rows of a tile
    small_start: float
    start: float
    tail: float  # share of the last wave's idle time that is lost, since the other tiles do not run faster
    small_combine: float  # combining splits, for as many as there are multiprocessors
    combine: float

    @cached_property
    def streamed_token(self) -> float:
        """One KV head's part of a cached token from memory, while all multiprocessors read."""
        return self.streamed_block / self.small_keys

    @cached_property
    def lone(self) -> float:
        """A block's time while few multiprocessors read, relative to all."""
        return self.lone_block / self.streamed_block

    @cached_property
    def crowd_token(self) -> float:
        """What a cached token adds to its block's time while all multiprocessors read."""
        return (self.streamed_block - self.lone_block) / self.small_keys


_COSTS = {
    64: TileCosts(192, 128, 192, 1.93, 1.66, 1.21, 3.44, 1.62, 5.08, 6.48, 1.00, 2.54, 3.20),
    96: TileCosts(192, 128, 128, 4.10, 2.05, 1.89, 5.50, 2.01, 5.32, 6.66, 0.72, 2.15, 3.72),
    128: TileCosts(128, 128, 128, 2.43, 1.93, 0.93, 3.72, 1.66, 6.04, 6.49, 0.97, 1.62, 4.50),
    256: TileCosts(128, 80, 80, 3.06, 2.45, 1.65, 4.59, 1.90, 5.80, 7.51, 0.75, 1.30, 8.92),
}


@cache
def tile_costs(dim: int) -> TileCosts:
    """The costs of the next larger head size that was fitted."""
    return _COSTS[min((size for size in _COSTS if size >= dim), default=max(_COSTS))]


class TileLoad(NamedTuple):
    """The work of a batch on the multiprocessors, in microseconds."""

    mean: float  # work per multiprocessor, if all were equally busy
    last: float  # end of the last one; for large tiles, without the speed-up from idle ones
    largest: float  # the largest tile
    combining: float  # combining splits
    small: bool  # whether tiles are small

    def microseconds(self, costs: TileCosts) -> float:
        """The kernel's time."""
        if self.small:
            return costs.small_start + self.last + self.combining
        return costs.start + self.mean + costs.tail * (self.last - self.mean) + self.combining


def batch_load(
    shape: HeadShape,
    queries: Sequence[int],
    keys: Sequence[int],
    sms: int,
    window: int | None = None,
    step_tokens: int | None = None,
) -> TileLoad:
    """Simulate a batch: tiles in order, each on the multiprocessor that is free first.

    KV heads are alike, so some of them on the same share of the multiprocessors stand for all. If these requests are
    only some of a step's, ``step_tokens`` decides whether tiles are split.
    """
    costs = tile_costs(shape.dim)
    small = max(queries) * shape.sharing <= SMALL_ROWS
    block = costs.small_keys if small else costs.keys
    tiles = [-(-q * shape.sharing // costs.rows) for q in queries]
    blocks = [-(-(k if window is None else min(k, window + q)) // block) for q, k in zip(queries, keys, strict=True)]
    total = shape.kv_heads * sum(t * b for t, b in zip(tiles, blocks, strict=True))
    share = max(1, -(-_TENTHS * total // (10 * sms)))
    most = MOST_SPLITS
    if (sum(queries) if step_tokens is None else step_tokens) > GRAPH_TOKENS:
        most = _splits_of_large(shape.kv_heads * max(tiles), max(blocks), sms)
    part = gcd(shape.kv_heads, sms)
    heads = shape.kv_heads // part
    all_tiles: list[float] = []
    combining = 0.0
    for query, key, count, most_blocks in zip(queries, keys, tiles, blocks, strict=True):
        cut = max(1, min(-(-most_blocks // share), most))
        if cut > 1:
            combine = costs.combine if query > 1 else costs.small_combine
            combining += combine * cut * shape.kv_heads * count / sms
        all_tiles += heads * _tiles(shape, query, key, cut, small, window)
    if small:
        last = all_read([tile - costs.small_tile for tile in all_tiles], costs.small_tile, costs.lone, sms // part)
    else:
        last = _all_done(all_tiles, sms // part)
    return TileLoad(sum(all_tiles) / (sms // part), last, max(all_tiles), combining, small)


def _all_done(tiles: list[float], sms: int) -> float:
    """Microseconds until the last tile is done, if tiles do not slow each other down."""
    free = [0.0] * sms
    for tile in tiles:
        heapq.heapreplace(free, free[0] + tile)
    return max(free)


@lru_cache(maxsize=1 << 16)
def _tiles(shape: HeadShape, query: int, key: int, cut: int, small: bool, window: int | None) -> tuple[float, ...]:
    """Microseconds of a request's tiles for one KV head, the longest first, each in ``cut`` splits."""
    costs = tile_costs(shape.dim)
    block = costs.small_keys if small else costs.keys
    count = -(-query * shape.sharing // costs.rows)
    found = []
    for i in reversed(range(count)):
        seen = key - query + min(query, -(-(i + 1) * costs.rows // shape.sharing))
        if window is not None:
            seen = min(seen, window + costs.rows // shape.sharing)
        blocks = -(-seen // block)
        each = -(-blocks // cut)
        while blocks > 0:
            here, tokens = min(each, blocks), min(seen, each * block)
            if small:
                found.append(costs.small_tile + costs.lone_block * here + costs.crowd_token * tokens)
            else:
                found.append(costs.tile + max(costs.streamed_token * tokens / count, costs.block * here))
            blocks -= here
            seen -= tokens
    return tuple(found)


def _splits_of_large(tiles: int, blocks: int, sms: int) -> int:
    """The splits of a batch too large for a captured graph: enough to fill its last wave well."""
    if tiles >= _SPLIT_BELOW * sms or blocks <= _FEW_BLOCKS:
        return 1
    fill = [tiles * cut / sms / ceil(tiles * cut / sms) for cut in range(1, min(128, sms, blocks) + 1)]
    return next(cut for cut, full in enumerate(fill, 1) if full >= _GOOD_ENOUGH * max(fill))


class EvenDecodes(NamedTuple):
    """Microseconds of batches of decodes all of one length, for many lengths at once."""

    mean: Floats
    last: Floats
    whole: Floats  # the kernel's time
    smooth: Floats  # the same without waves, as with different lengths


def even_decodes(shape: HeadShape, requests: int, lengths: Floats, sms: int) -> EvenDecodes:
    """What `batch_load` finds for requests of one length, in closed form.

    Splits are assumed to be equal. The last split of a request is often shorter, which can make room for another one if
    there is little more than one wave; ignoring that overestimates 0.3 % of batches by 8 to 40 %.
    """
    costs = tile_costs(shape.dim)
    blocks = np.ceil(lengths / costs.small_keys)
    share = np.ceil(_TENTHS * shape.kv_heads * requests * blocks / (10 * sms))
    each = np.ceil(blocks / np.clip(np.ceil(blocks / share), 1, MOST_SPLITS))
    cut = np.ceil(blocks / each)
    waves = requests * shape.kv_heads * cut / sms
    read = costs.lone_block * each + costs.crowd_token * lengths / cut
    full, rest = np.floor(waves), waves % 1
    alone = costs.small_tile + read * (costs.lone + (1.0 - costs.lone) * rest)
    mean = waves * (costs.small_tile + read)
    last = full * (costs.small_tile + read) + np.where(rest > 0, alone, 0.0)
    extra = costs.small_start + np.where(cut > 1, costs.small_combine * waves, 0.0)
    whole = extra + last
    return EvenDecodes(mean, last, whole, np.where(waves < 1, whole, extra + mean))
