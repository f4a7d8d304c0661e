"""What it costs that the requests of a batch are of different lengths.

Tiles of one length come in waves; of different lengths they do not, and the last to be taken ends late. How late
depends on how many waves there are and hardly on how different the lengths are, or on the longest: a long one is split.
It does depend on the order. Requests stand in the batch as they came, so that those which have generated most are
first. But most of a length is the prompt, which is anything: the order of lengths shows only faintly in that of places.
Batches like that are played through for a table.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from functools import cache

import numpy as np

from steelyard.cost.measured.tiles import HeadShape, batch_load, even_decodes, tile_costs
from steelyard.cost.source import Floats

_WAVES = (*(i / 10 for i in range(1, 13)), 1.4, 1.6, 1.8, 2.0, 2.4, 3.0, 4.0, 6.0, 8.0, 16.0)
_LENGTHS = (512, 1536, 4096)
_SPREAD = 0.5  # of the logarithm of lengths
_MIXED = 2.5  # of that spread, by which places differ from the order of lengths: they go together to 0.37
_DRAWN = 1024  # requests of all batches that are played through for a point: the smaller, the more they differ
_FEWEST, _MOST = 4, 32  # such batches
_MOST_REQUESTS = 1024


def unevenness(shape: HeadShape, requests: int, lengths: Floats, sms: int) -> Floats:
    """The factor over the smooth time of decodes of so many tokens on average."""
    counts = _counts(shape.kv_heads, sms)
    above = bisect_left(counts, requests)
    near = counts[max(0, above - 1) : above + 1]
    table = np.array([_factors(shape.kv_heads, shape.dim, count, sms) for count in near])
    at = np.array([np.interp(np.log(requests), np.log(near), column) for column in table.T])
    factors: Floats = np.interp(np.log(lengths), np.log(_LENGTHS), at)
    return factors


@cache
def _counts(kv_heads: int, sms: int) -> list[int]:
    """Numbers of requests that the factor is known at."""
    counts = sorted({1, *(max(2, round(waves * sms / kv_heads)) for waves in _WAVES)})
    return [count for count in counts if count <= _MOST_REQUESTS]


@cache
def _factors(kv_heads: int, dim: int, requests: int, sms: int) -> tuple[float, ...]:
    """The factor of so many requests by mean length; played through when it is first asked for."""
    if requests == 1:
        return (1.0,) * len(_LENGTHS)
    shape = HeadShape(kv_heads, kv_heads, dim)
    return tuple(_factor(shape, requests, mean, sms) for mean in _LENGTHS)


def _factor(shape: HeadShape, requests: int, mean: int, sms: int) -> float:
    dice = random.Random(requests)
    smooth = float(even_decodes(shape, requests, np.array([float(mean)]), sms).smooth[0])
    draws = max(_FEWEST, min(_DRAWN // requests, _MOST))
    played = [
        batch_load(shape, [1] * requests, draw_batch(dice, requests, mean), sms).microseconds(tile_costs(shape.dim))
        for _ in range(draws)
    ]
    return sum(played) / draws / smooth


def draw_batch(dice: random.Random, requests: int, mean: int) -> list[int]:
    """Lengths as they come, the longest a little sooner."""
    logs = [dice.gauss(0.0, _SPREAD) for _ in range(requests)]
    logs.sort(key=lambda log: dice.gauss(0.0, _MIXED * _SPREAD) - log)
    lengths = np.exp(logs)
    return [max(1, int(length)) for length in (lengths / lengths.mean() * mean).tolist()]
