"""Correction factors: measured over simulated time of similar batches. The constants are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

import numpy as np

from steelyard.cost.bundle import Row
from steelyard.cost.measured.tiles import GRAPH_TOKENS, EvenDecodes, HeadShape, TileLoad, batch_load, tile_costs
from steelyard.cost.source import Floats

_NEIGHBOURS = 8  # measured batches that a factor is the mean of
_NEAREST = 0.02  # added to distances, so that no neighbour has all the weight
_OTHER_KERNEL = 1.0  # distance between batches with and without splits
_OTHER_SHAPE = 2.0  # weight of a factor of two in heads, relative to one in requests or tokens


@dataclass(frozen=True)
class Correction:
    """Log of measured over simulated time of measured batches, and their coordinates."""

    described: Floats
    logs: Floats

    @classmethod
    def of(cls, rows: Sequence[tuple[HeadShape, Row]], sms: int) -> Correction:
        """From measured batches."""
        described, logs = [], []
        for shape, row in rows:
            load = batch_load(shape, row["queries"], row["keys"], sms, row.get("window"))
            described.append(_describe(shape, row["queries"], row["keys"], load))
            logs.append(np.log(row["us"] / load.microseconds(tile_costs(shape.dim))))
        return cls(np.array(described), np.array(logs))

    def of_batch(self, shape: HeadShape, queries: Sequence[int], keys: Sequence[int], load: TileLoad) -> float:
        """The factor for a batch."""
        return float(self._at(np.array([_describe(shape, queries, keys, load)]))[0])

    def of_even_decodes(self, shape: HeadShape, requests: int, lengths: Floats, even: EvenDecodes) -> Floats:
        """The factors for batches of decodes all of one length, for many lengths at once."""
        rows = zip(lengths.tolist(), even.mean.tolist(), even.last.tolist(), strict=True)
        return self._at(np.array([_describe_sums(shape, requests, n * requests, 0, 0, 0, m, e) for n, m, e in rows]))

    def _at(self, asked: Floats) -> Floats:
        """The mean of the nearest batches, weighted by inverse distance."""
        apart = ((asked[:, None] - self.described[None]) ** 2).sum(axis=2)
        nearest = np.argsort(apart, axis=1, kind="stable")[:, :_NEIGHBOURS]
        weights = 1.0 / (np.take_along_axis(apart, nearest, axis=1) + _NEAREST)
        factors: Floats = np.exp((weights * self.logs[nearest]).sum(axis=1) / weights.sum(axis=1))
        return factors


def _describe(shape: HeadShape, queries: Sequence[int], keys: Sequence[int], load: TileLoad) -> list[float]:
    decodes = [key for query, key in zip(queries, keys, strict=True) if query == 1]
    chunks = len(queries) - len(decodes)
    new = sum(queries) - len(decodes)
    seen = sum(keys) - sum(decodes)
    return _describe_sums(shape, len(decodes), sum(decodes), chunks, new, seen, load.mean, load.last)


def _describe_sums(
    shape: HeadShape, decodes: int, cached: float, chunks: int, new: int, seen: float, mean: float, last: float
) -> list[float]:
    """Coordinates of a batch: a distance of one is a factor of two."""
    captured = decodes + new <= GRAPH_TOKENS
    return [
        _OTHER_KERNEL * captured,
        log2(decodes + 1),
        log2(cached / decodes + 64) if decodes else 0.0,
        log2(chunks + 1),
        log2(new + 8),
        log2(seen / chunks + 64) if chunks else 0.0,
        2.0 * (last / mean - 1.0),
        log2(mean + 4.0),
        _OTHER_SHAPE * log2(shape.sharing),
        _OTHER_SHAPE * log2(shape.kv_heads),
        _OTHER_SHAPE * log2(shape.dim),
    ]
