"""What an operator takes more among others than alone: caches are colder, and no call overlaps the next of its kind."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from steelyard.cost.bundle import Row

_OPERATORS = 10  # of a measured layer


def in_company(layers: Sequence[Row]) -> float:
    """Seconds more for each operator, from whole layers that were measured both as such and operator by operator."""
    if not layers:
        return 0.0
    more: float = median(row["us"] - row["apart_us"] for row in layers)
    return max(0.0, more) * 1e-6 / _OPERATORS
