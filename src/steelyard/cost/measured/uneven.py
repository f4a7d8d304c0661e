"""The cost of different request lengths in a batch.

Tiles of one length run in waves. Tiles of different lengths do not, and the last one ends late. How late depends on the
number of waves, and hardly on the spread of lengths or the longest, since long ones are split. It also depends on the
order. Requests are in order of arrival, so those with most output come first. But most of a length is the prompt, which
is independent of the order, so position and length are only weakly correlated. Such batches are simulated for a table.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from functools import cache

import numpy as np

from steelyard.cost.measured.tiles import HeadShape, batch_load, even_decodes, tile_costs
from steelyard.cost.source import Floats

_WAVES = (*(i / 10 for i in range(1, 13)), 1.4, 1.6, 1.8, 2.0, 2.4, 3.0, 4.0, 6.0, 8.0, 16.0)
_LENGTHS = (512, 1536, 4096)  # mean lengths that are tabulated; chosen
_SPREAD = 0.5  # standard deviation of the logarithm of lengths; chosen, and of little influence
# Noise on positions, relative to that spread: a correlation of 0.37 between position and length. Azure's conversations
# have 0.36 (tests/cost/test_measured_attention.py).
_MIXED = 2.5
_DRAWN = 1024  # requests of all batches simulated for a point: small batches differ more, so more of them are needed
_FEWEST, _MOST = 4, 32  # batches simulated for a point
_MOST_REQUESTS = 1024  # of a tabulated batch; larger ones are treated like it


def unevenness(shape: HeadShape, requests: int, lengths: Floats, sms: int) -> Floats:
    """The factor on the smooth time of decodes, by their mean length."""
    counts = _counts(shape.kv_heads, sms)
    above = bisect_left(counts, requests)
    near = counts[max(0, above - 1) : above + 1]
    table = np.array([_factors(shape.kv_heads, shape.dim, count, sms) for count in near])
    at = np.array([np.interp(np.log(requests), np.log(near), column) for column in table.T])
    factors: Floats = np.interp(np.log(lengths), np.log(_LENGTHS), at)
    return factors


@cache
def _counts(kv_heads: int, sms: int) -> list[int]:
    """Numbers of requests at which the factor is tabulated."""
    counts = sorted({1, *(max(2, round(waves * sms / kv_heads)) for waves in _WAVES)})
    return [count for count in counts if count <= _MOST_REQUESTS]


@cache
def _factors(kv_heads: int, dim: int, requests: int, sms: int) -> tuple[float, ...]:
    """The factor for ``requests`` by mean length; simulated on first use."""
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
    """Random lengths in batch order, longer ones slightly earlier."""
    logs = [dice.gauss(0.0, _SPREAD) for _ in range(requests)]
    logs.sort(key=lambda log: dice.gauss(0.0, _MIXED * _SPREAD) - log)
    lengths = np.exp(logs)
    return [max(1, int(length)) for length in (lengths / lengths.mean() * mean).tolist()]
