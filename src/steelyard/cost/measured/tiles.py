"""How attention kernels share their work out, and how long that would take.

FlashAttention cuts a batch into tiles: for each request and key head, some rows of queries (tokens times the query
heads that share keys) against all their keys, block by block. Long ones are split over the keys, by a plan that aims
at equal shares. The GPU's multiprocessors take tiles in the order of the batch. What a batch takes is therefore
neither its bytes nor its arithmetic alone: one request more can begin another wave, and a long one that comes last
holds up all. This module plays that through; measured points then correct its level (`attention.py`).

The costs are microseconds on an H200, fitted to its profile for each size of head.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd
from typing import NamedTuple

import numpy as np

from steelyard.cost.source import Floats

_MARGIN = 1.1  # of its even share of blocks that a split may have
MOST_SPLITS = 32  # in steps that fit a captured graph
GRAPH_TOKENS = 512
SMALL_ROWS = 64  # of queries in each tile of a batch, up to which its tiles are small
_SPLIT_BELOW = 0.8  # of the multiprocessors busy without splits, in larger steps
_GOOD_ENOUGH = 0.85  # of the best fill of the last wave
_FEW_BLOCKS = 4


class HeadShape(NamedTuple):
    """Query heads, key heads and head size of one GPU's share of a model."""

    heads: int
    kv_heads: int
    dim: int

    @property
    def sharing(self) -> int:
        """Query heads to a key head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class TileCosts:
    """Sizes of a tile, and microseconds."""

    rows: int
    keys: int  # of a block
    small_keys: int  # of a block in batches of small tiles: of decodes, or little more
    small_tile: float  # begin and end of a small tile
    streamed_block: float  # a block of small_keys from memory, when all multiprocessors read at once
    lone_block: float  # the same when few do
    tile: float  # begin and end of a tile in other batches, and so on
    block: float  # a block of keys against all rows of a tile
    small_start: float
    start: float
    small_tail: float  # share of the last wave's idle time that is not made up by the others running faster
    tail: float
    small_combine: float  # putting splits together, for as many as there are multiprocessors
    combine: float

    @property
    def streamed_token(self) -> float:
        """One key head's part of a cached token from memory, when all multiprocessors read at once."""
        return self.streamed_block / self.small_keys


_COSTS = {
    64: TileCosts(192, 128, 192, 2.84, 1.55, 0.65, 3.44, 1.62, 4.97, 6.48, 0.84, 1.00, 2.31, 3.20),
    96: TileCosts(192, 128, 128, 4.17, 2.02, 0.80, 5.50, 2.01, 5.42, 6.66, 0.97, 0.72, 1.87, 3.72),
    128: TileCosts(128, 128, 128, 2.93, 1.86, 1.07, 3.72, 1.66, 6.00, 6.49, 0.56, 0.97, 2.88, 4.50),
    256: TileCosts(128, 80, 80, 4.41, 2.36, 0.96, 4.59, 1.90, 4.98, 7.51, 0.77, 0.75, 1.60, 8.92),
}


def tile_costs(dim: int) -> TileCosts:
    """The costs of the next larger head that is known."""
    return _COSTS[min((size for size in _COSTS if size >= dim), default=max(_COSTS))]


class Load(NamedTuple):
    """What a batch asks of the multiprocessors, in microseconds."""

    mean: float  # of work on each
    last: float  # until the last is done, were none faster when others are idle
    largest: float  # tile
    combining: float  # what was split
    small: bool  # tiles

    def microseconds(self, costs: TileCosts) -> float:
        """The kernel's time."""
        start, tail = (costs.small_start, costs.small_tail) if self.small else (costs.start, costs.tail)
        return start + self.mean + tail * (self.last - self.mean) + self.combining


def batch_load(
    shape: HeadShape,
    queries: Sequence[int],
    keys: Sequence[int],
    sms: int,
    window: int | None = None,
    step_tokens: int | None = None,
) -> Load:
    """Play a batch through: tiles in order, each to the multiprocessor that is free first.

    Key heads are alike, so that a part of them on as large a part of the multiprocessors stands for all. Whether tiles
    are split goes by ``step_tokens`` where these requests are only some of a step's.
    """
    costs = tile_costs(shape.dim)
    small = max(queries) * shape.sharing <= SMALL_ROWS
    block = costs.small_keys if small else costs.keys
    tiles = [-(-q * shape.sharing // costs.rows) for q in queries]
    blocks = [-(-(k if window is None else min(k, window + q)) // block) for q, k in zip(queries, keys, strict=True)]
    share = max(1, ceil(_MARGIN * shape.kv_heads * sum(t * b for t, b in zip(tiles, blocks, strict=True)) / sms))
    most = MOST_SPLITS
    if (sum(queries) if step_tokens is None else step_tokens) > GRAPH_TOKENS:
        most = _splits_of_large(shape.kv_heads * max(tiles), max(blocks), sms)
    part = gcd(shape.kv_heads, sms)
    heads = shape.kv_heads // part
    free = [0.0] * (sms // part)
    work = largest = combining = 0.0
    for query, key, count, most_blocks in zip(queries, keys, tiles, blocks, strict=True):
        cut = max(1, min(-(-most_blocks // share), most))
        if cut > 1:
            combine = costs.combine if query > 1 else costs.small_combine
            combining += combine * cut * shape.kv_heads * count / sms
        spent = _tiles(shape, query, key, cut, small, window)
        work += heads * sum(spent)
        largest = max(largest, spent[0])
        for _ in range(heads):
            for one in spent:
                heapq.heapreplace(free, free[0] + one)
    return Load(work / len(free), max(free), largest, combining, small)


@lru_cache(maxsize=1 << 16)
def _tiles(shape: HeadShape, query: int, key: int, cut: int, small: bool, window: int | None) -> tuple[float, ...]:
    """Microseconds of a request's tiles for one key head, the longest first; each in so many splits."""
    costs = tile_costs(shape.dim)
    if small:
        start, block, alone = costs.small_tile, costs.small_keys, costs.lone_block
    else:
        start, block, alone = costs.tile, costs.keys, costs.block
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
            found.append(start + max(costs.streamed_token * tokens / count, alone * here))
            blocks -= here
            seen -= tokens
    return tuple(found)


def _splits_of_large(tiles: int, blocks: int, sms: int) -> int:
    """The most splits that a batch too large for a captured graph gets: enough to fill its last wave well."""
    if tiles >= _SPLIT_BELOW * sms or blocks <= _FEW_BLOCKS:
        return 1
    fill = [tiles * cut / sms / ceil(tiles * cut / sms) for cut in range(1, min(128, sms, blocks) + 1)]
    return next(cut for cut, full in enumerate(fill, 1) if full >= _GOOD_ENOUGH * max(fill))


class EvenDecodes(NamedTuple):
    """Microseconds of batches of decodes all of one length, for many lengths at once."""

    mean: Floats
    last: Floats
    whole: Floats  # the kernel's time
    smooth: Floats  # the same were there no waves, as where lengths differ


def even_decodes(shape: HeadShape, requests: int, lengths: Floats, sms: int) -> EvenDecodes:
    """What `batch_load` finds for requests of one length, without playing it through."""
    costs = tile_costs(shape.dim)
    blocks = np.ceil(lengths / costs.small_keys)
    share = np.ceil(_MARGIN * shape.kv_heads * requests * blocks / sms)
    each = np.ceil(blocks / np.clip(np.ceil(blocks / share), 1, MOST_SPLITS))
    cut = np.ceil(blocks / each)
    waves = requests * shape.kv_heads * cut / sms
    one = costs.small_tile + np.maximum(costs.streamed_token * lengths / cut, costs.lone_block * each)
    mean, last = waves * one, np.ceil(waves) * one
    extra = costs.small_start + np.where(cut > 1, costs.small_combine * waves, 0.0)
    whole = extra + mean + costs.small_tail * (last - mean)
    return EvenDecodes(mean, last, whole, np.where(waves < 1, whole, extra + mean))
