"""What an operator takes longer inside a layer than alone: caches are colder, and equal calls do not overlap."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from steelyard.cost.bundle import Row

_OPERATORS = 10  # of a measured layer (`layer` in docs/profiles.md)


def layer_overhead(layers: Sequence[Row]) -> float:
    """Extra seconds per operator, from layers that were measured both as a whole and operator by operator."""
    if not layers:
        return 0.0
    more: float = median(row["us"] - row["apart_us"] for row in layers)
    return max(0.0, more) * 1e-6 / _OPERATORS
