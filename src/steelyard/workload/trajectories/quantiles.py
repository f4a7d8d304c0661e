"""Distributions as tables: the midpoint of each of 65,536 equal parts of probability, in ascending order.

So drawing from any distribution is a look-up, and a level is the rank of a draw. Values rarer than one in 131,072 never
occur.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np

from steelyard.records import Floats
from steelyard.scenario import (
    EmpiricalTokens,
    ExponentialSeconds,
    FixedSeconds,
    FixedTokens,
    Lognormal,
    UniformSeconds,
    UniformTokens,
    ZipfTokens,
)
from steelyard.scenario.numbers import MOST
from steelyard.workload.draw import Seconds, Tokens, draw_tokens
from steelyard.workload.trajectories.chance import LEVELS, share

_SHARES = share(np.arange(LEVELS, dtype=np.intp))


@cache
def normal() -> Floats:
    """The standard normal."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse(each) for each in _SHARES.tolist()])


def tokens_table(spec: Tokens, base_dir: Path) -> Floats:
    """Lengths of at least one token; continuous ones are not rounded, since factors are applied later."""
    match spec:
        case FixedTokens():
            return np.full(LEVELS, float(spec.tokens))
        case UniformTokens():
            return np.floor(spec.min + _SHARES * (spec.max - spec.min + 1))
        case Lognormal():
            return np.clip(_lognormal(spec), 1.0, MOST)
        case ZipfTokens():
            lengths = np.arange(spec.min, spec.max + 1, dtype=np.float64)
            total = np.cumsum(lengths**-spec.exponent)
            return np.asarray(lengths[np.searchsorted(total, _SHARES * total[-1])])
        case EmpiricalTokens():
            return np.sort(draw_tokens(spec, LEVELS, np.random.default_rng(0), base_dir)).astype(np.float64)


def seconds_table(spec: Seconds) -> Floats:
    """Times of at least zero seconds."""
    match spec:
        case FixedSeconds():
            return np.full(LEVELS, spec.seconds)
        case UniformSeconds():
            return np.asarray(spec.min + _SHARES * (spec.max - spec.min))
        case ExponentialSeconds():
            return np.asarray(-spec.mean * np.log1p(-_SHARES))
        case Lognormal():
            return _lognormal(spec)


def _lognormal(spec: Lognormal) -> Floats:
    mu, sigma = spec.parameters()
    return np.clip(np.exp(mu + sigma * normal()), spec.min or 0.0, spec.max or np.inf)
