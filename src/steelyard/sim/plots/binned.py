"""Figures over time, small for a run of any size.

Means over time are exact integrals over each bin, not samples. Each bin has parts, and the band around a curve is from
the lowest to the highest mean of a bin's parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from steelyard.records.columns import Floats
from steelyard.sim.plots.axis import TimeAxis

Columns = Mapping[str, np.ndarray]

PARTS = 8
"""Parts of a bin."""


@dataclass(frozen=True, eq=False)
class Binned:
    """A figure over time: the mean of each bin, and the lowest and the highest of its parts."""

    mean: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, totals: Floats, per: Floats | float) -> Binned:
        """Of integrals over parts of bins, and the seconds, or the weights, that they are taken per."""
        weights = np.broadcast_to(np.asarray(per, dtype=np.float64), totals.shape)
        totals = np.where(np.abs(totals) < 1e-9 * np.abs(totals).max(initial=0.0), 0.0, totals)  # rounding errors
        parts, known = _ratio(totals, weights).reshape(-1, PARTS), weights.reshape(-1, PARTS) > 0
        whole = _ratio(totals.reshape(-1, PARTS).sum(1), weights.reshape(-1, PARTS).sum(1))
        low = np.where(known, parts, np.inf).min(1)  # a part without weight has no value
        return cls(whole, np.where(known.any(1), low, 0.0), parts.max(1))


def _ratio(totals: Floats, weights: Floats) -> Floats:
    return np.divide(totals, weights, out=np.zeros(len(totals)), where=weights > 0)


def integrals(axis: TimeAxis, start: np.ndarray, end: np.ndarray, *values: np.ndarray) -> np.ndarray:
    """The exact integral of each value over each bin, where row i holds its value from start[i] to end[i]."""
    low, high = axis.bin_of(start), axis.bin_of(end)
    inside, across = np.flatnonzero(low == high), np.flatnonzero(low != high)
    within = (end - start)[inside]
    first, last = low[across], high[across]
    head = axis.start + (first + 1) * axis.width - start[across]
    tail = end[across] - (axis.start + last * axis.width)
    totals = np.empty((len(values), axis.bins))
    for total, value in zip(totals, values, strict=True):
        spanning = value[across]
        level = per_bin(axis.bins + 1, first + 1, spanning) - per_bin(axis.bins + 1, last, spanning)
        total[:] = np.cumsum(level)[: axis.bins] * axis.width
        total += per_bin(axis.bins, low[inside], value[inside] * within)
        total += per_bin(axis.bins, first, spanning * head) + per_bin(axis.bins, last, spanning * tail)
    return totals


def per_bin(bins: int, where: np.ndarray, weights: np.ndarray) -> Floats:
    """Sums of weights by bin."""
    return np.bincount(where, weights=weights, minlength=bins).astype(np.float64, copy=False)


def spread(axis: TimeAxis, start: np.ndarray, end: np.ndarray, amount: np.ndarray) -> Floats:
    """Amounts per bin, each spread evenly over its interval. An interval without length falls in one bin."""
    instant = end <= start
    total = per_bin(axis.bins, axis.bin_of(end[instant]), amount[instant])
    start, end, amount = start[~instant], end[~instant], amount[~instant]
    total += integrals(axis, start, end, amount / (end - start))[0]
    return total


def tokens_over_time(requests: Columns, axis: TimeAxis) -> tuple[Binned, Binned] | None:
    """Input and output tokens per second; None if no request finished. Those of a finished request are spread evenly
    over its prefill and its decode."""
    done = requests["status"] == "finished"
    if not done.any():
        return None
    scheduled, first, finish = (requests[name][done] for name in ("scheduled", "first_token", "finish"))
    prompt, output = requests["prompt"][done], requests["output"][done]
    onset = per_bin(axis.bins, axis.bin_of(first), np.ones(len(first)))
    read = spread(axis, scheduled, first, prompt)
    written = onset + spread(axis, first, finish, output - 1)
    return Binned.of(read, axis.width), Binned.of(written, axis.width)


def raise_peaks(peak: np.ndarray, axis: TimeAxis, start: np.ndarray, end: np.ndarray, value: np.ndarray) -> None:
    """Lift each bin's peak to the largest value held anywhere in it."""
    low, high = axis.bin_of(start), axis.bin_of(end)
    spans = high - low + 1
    owner = np.repeat(np.arange(len(start)), spans)
    where = low[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(spans) - spans, spans)
    np.maximum.at(peak, where, value[owner])
