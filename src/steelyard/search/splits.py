"""How many engines of two kinds share the GPUs of a fleet: those that prefill, and those that decode or are units."""

from __future__ import annotations

import numpy as np

from steelyard.records import Ints
from steelyard.scenario.search import SearchSpec

_EXACT = 1e-9  # a share of the GPUs that is a whole number of engines but for rounding is that number


def splits(spec: SearchSpec, one: int, other: int) -> Ints:
    """Numbers of both kinds, a row for each split. ``one`` and ``other`` are the GPUs of an engine.

    If a fleet's cost is what matters, of every size; else as many engines as there is room for.
    """
    every = spec.objective == "cost"
    if spec.prefill_share is not None:
        pairs = _at_shares(spec.prefill_share, spec.gpus, one, other, every)
    else:
        pairs = _at_any(spec.gpus, one, other, every)
    return pairs[(pairs > 0).all(axis=1)]


def _at_any(gpus: int, one: int, other: int, every: bool) -> Ints:
    """Each number of the first kind, with as many of the second as there is room for."""
    firsts = np.arange(1, gpus // one + 1)
    seconds = (gpus - firsts * one) // other
    if every:
        ones = np.repeat(firsts, seconds)
        others = [np.arange(1, most + 1) for most in seconds.tolist()]
        return np.stack([ones, np.concatenate([np.empty(0, dtype=np.int64), *others])], axis=1)
    return np.stack([firsts, seconds], axis=1)


def _at_shares(shares: tuple[float, ...], gpus: int, one: int, other: int, every: bool) -> Ints:
    """As many of each kind as its share of the GPUs has room for."""
    fleets = np.arange(1, gpus + 1) if every else np.array([gpus])
    pairs = [
        np.stack([np.floor(part * fleets / size + _EXACT) for part, size in ((share, one), (1 - share, other))], axis=1)
        for share in shares
    ]
    return np.unique(np.concatenate(pairs).astype(np.int64), axis=0)
