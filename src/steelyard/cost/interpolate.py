"""Linear interpolation between measured points, with provenance: measured, interpolated or extrapolated."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, MEASURED, Estimate, Floats


def rising(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """One point per x, monotone: noise only adds time, so a spike is lowered to the points after it."""
    keep, place = np.unique(x, return_inverse=True)
    fastest = np.full(len(keep), np.inf)
    np.minimum.at(fastest, place, y)
    return keep, np.minimum.accumulate(fastest[::-1])[::-1]


def line(at: Floats, x: Floats, y: Floats) -> Floats:
    """Linear between points; beyond the last with the last slope, before the first constant."""
    if len(x) == 1:
        return np.full(np.shape(at), y[0])
    slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
    return np.where(at > x[-1], y[-1] + (at - x[-1]) * slope, np.interp(at, x, y))


def along(at: Floats, x: Floats, y: Floats) -> Estimate:
    """Seconds on the line through measured points; zero where there is no work."""
    return Estimate(np.where(at > 0, line(at, x, y), 0.0), provenance_of(at, x))


def provenance_of(at: Floats, x: Floats) -> NDArray[np.int8]:
    """Measured at a point, interpolated between two, extrapolated beyond the last."""
    inside = np.where(np.isin(at, x), MEASURED, INTERPOLATED)
    return np.where(at > x[-1], EXTRAPOLATED, inside).astype(np.int8)


def columns(points: Iterable[tuple[float, float]]) -> tuple[Floats, Floats]:
    """Two arrays from pairs, sorted by the first."""
    table = np.array(sorted(points), dtype=np.float64)
    return table[:, 0], table[:, 1]


def monotone(y: Floats) -> Floats:
    """The nearest monotone sequence: where values fall, they are averaged with those before."""
    values: list[float] = []
    counts: list[int] = []
    for value in y.tolist():
        values.append(value)
        counts.append(1)
        while len(values) > 1 and values[-2] > values[-1]:
            last, count = values.pop(), counts.pop()
            values[-1] = (values[-1] * counts[-1] + last * count) / (counts[-1] + count)
            counts[-1] += count
    return np.repeat(np.array(values), counts)


def between(knots: Floats, at: float) -> tuple[int, float]:
    """The piece of a line that ``at`` falls on, and the fraction of it: over 1 beyond the last knot, 0 before the
    first."""
    i = int(np.clip(np.searchsorted(knots, at) - 1, 0, len(knots) - 2))
    return i, max(0.0, float((at - knots[i]) / (knots[i + 1] - knots[i])))
