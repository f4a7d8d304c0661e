"""Mean and percentiles of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.records import Floats
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.summary import Latency

Column = NDArray[Any]
PERCENTILES = (50, 90, 95, 99)
NOTHING = Latency(mean=None, p50=None, p90=None, p95=None, p99=None, max=None, count=0)


def percentiles(values: Floats, percents: Sequence[float]) -> list[float]:
    """Percentiles by linear interpolation, the same as `np.percentile`, whose checks cost more than the work."""
    last = len(values) - 1
    places = [percent / 100 * last for percent in percents]
    around = [(int(place), min(int(place) + 1, last)) for place in places]
    ordered = np.partition(values, sorted({each for pair in around for each in pair}))
    found = []
    for place, (low, high) in zip(places, around, strict=True):
        less, more, share = ordered.item(low), ordered.item(high), place - low
        found.append(more - (more - less) * (1 - share) if share >= 0.5 else less + (more - less) * share)
    return found


def spread_of(values: Column) -> Latency:
    """Mean and percentiles of the finite values."""
    values = values[np.isfinite(values)]
    if not len(values):
        return NOTHING
    p50, p90, p95, p99 = percentiles(values, PERCENTILES)
    return Latency(float(values.mean()), p50, p90, p95, p99, float(values.max()), len(values))


def spread_of_gaps(gaps: TokenGaps) -> Latency:
    """Mean and percentiles of the gaps between tokens."""
    if not gaps.total:
        return NOTHING
    p50, p90, p95, p99 = gaps.percentiles(PERCENTILES)
    return Latency(gaps.mean, p50, p90, p95, p99, gaps.longest, gaps.total)
