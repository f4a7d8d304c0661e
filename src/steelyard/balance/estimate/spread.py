"""Turns a forecast into a mean and a p90 in tokens, by the errors of recent forecasts of similar size.

Every forecast was made before its trajectory was learnt, so nothing is assumed about the forecaster, as in conformal
prediction. All values are square roots of tokens, whose errors hardly depend on the size.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from steelyard.balance.estimate.protocol import UNKNOWN, Left
from steelyard.balance.portable import to_grid
from steelyard.records import Floats

_BITS = 10  # pairs are multiples of 2 ** -10, so that sums of squares over a window are exact in any order
_WINDOW = 2_000  # pairs
_KNOTS = 9  # forecasts at which errors are fitted
_SHARE = 1 / 4  # share of pairs that count at a knot: the nearest
_FEWEST = 20  # pairs at a knot, so that two are above the 90th percentile


class Spread:
    """The last pairs of forecast and truth. ``fit`` computes the spread of errors at a few forecasts, the knots."""

    def __init__(self) -> None:
        self._pairs = np.zeros((_WINDOW, 2))
        self._count = 0
        self._at: list[float] = []
        self._errors: list[tuple[float, float]] = []  # variance and 90th percentile at each knot

    def add(self, forecasts: Floats, truths: Floats) -> None:
        """Add pairs. The oldest are dropped."""
        places = (self._count + np.arange(len(forecasts))) % _WINDOW
        self._pairs[places, 0] = to_grid(forecasts, _BITS)
        self._pairs[places, 1] = to_grid(truths, _BITS)
        self._count += len(forecasts)

    def fit(self) -> None:
        """Compute the spread of errors at each knot, from forecasts of similar size."""
        pairs = self._pairs[: min(self._count, _WINDOW)]
        if not len(pairs):
            return
        forecasts, truths = pairs[np.argsort(pairs[:, 0], kind="stable")].T
        errors = truths - forecasts
        width = min(len(errors), max(_FEWEST, round(len(errors) * _SHARE)))
        first = np.unique(np.linspace(0, len(errors) - width, _KNOTS).astype(int))
        near = first[:, None] + np.arange(width)  # one row per knot
        around = errors[near]
        self._at = forecasts[near].mean(axis=1).tolist()
        variances = (around * around).mean(axis=1)
        self._errors = list(zip(variances.tolist(), _p90(around).tolist(), strict=True))

    def left(self, forecast: float) -> Left:
        """Mean and p90 in whole tokens. Errors are interpolated between knots, and constant outside."""
        if not self._at:
            return UNKNOWN
        upper = bisect_right(self._at, forecast)
        if upper == 0 or upper == len(self._at):
            variance, high = self._errors[max(upper - 1, 0)]
        else:
            share = (forecast - self._at[upper - 1]) / (self._at[upper] - self._at[upper - 1])
            (variance, high), (later, higher) = self._errors[upper - 1], self._errors[upper]
            variance, high = variance + share * (later - variance), high + share * (higher - high)
        expected, most = max(0.0, forecast), max(0.0, forecast + high)
        return Left(float(round(expected * expected + variance)), float(round(most * most)))


def _p90(rows: Floats) -> Floats:
    """The 90th percentile of each row, interpolated: `np.quantile` without its checks."""
    at = 0.9 * (rows.shape[1] - 1)
    low = int(at)
    high = min(low + 1, rows.shape[1] - 1)
    sorted_there = np.partition(rows, (low, high), axis=1)
    less, more, share = sorted_there[:, low], sorted_there[:, high], at - low
    found: Floats = more - (more - less) * (1.0 - share) if share >= 0.5 else less + (more - less) * share
    return found
