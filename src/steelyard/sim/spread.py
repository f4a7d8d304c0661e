"""Mean and percentiles of columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.sim.gaps import TokenGaps
from steelyard.sim.summary import Latency

Column = NDArray[Any]
PERCENTILES = (50, 90, 95, 99)
NOTHING = Latency(mean=None, p50=None, p90=None, p95=None, p99=None, max=None, count=0)


def spread_of(values: Column) -> Latency:
    """Mean and percentiles of the finite values."""
    values = values[np.isfinite(values)]
    if not len(values):
        return NOTHING
    p50, p90, p95, p99 = map(float, np.percentile(values, PERCENTILES))
    return Latency(float(values.mean()), p50, p90, p95, p99, float(values.max()), len(values))


def spread_of_gaps(gaps: TokenGaps) -> Latency:
    """Mean and percentiles of the gaps between tokens."""
    if not gaps.total:
        return NOTHING
    p50, p90, p95, p99 = gaps.percentiles(PERCENTILES)
    return Latency(gaps.mean, p50, p90, p95, p99, gaps.longest, gaps.total)
