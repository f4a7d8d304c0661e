"""Element-wise work: by the bytes it moves, or by the row's size where kernels differ with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from steelyard.cost.bundle import Row
from steelyard.cost.interpolate import along, columns
from steelyard.cost.source import Estimate, Floats
from steelyard.model import Elementwise

_BY_NAME = {
    "act": "gated_act",
    "shared_act": "gated_act",
    "rope": "rope",
    "qk_norm": "qk_norm",
    "kv_write": "kv_write",
    "router_topk": "topk",
}
_BY_KIND = {"sampling": "sampler", "one_pass_sampling": "gumbel"}
# Bytes of a row, counted as `Elementwise.bytes` counts them.
_ROW_BYTES: dict[str, Callable[[Row], int]] = {
    "norm": lambda row: 8 * row["width"],
    "gated_act": lambda row: 6 * row["width"],
    "rope": lambda row: 4 * (row["heads"] + row["kv_heads"]) * row["dim"],
    "qk_norm": lambda row: 4 * (row["heads"] + row["kv_heads"]) * row["dim"],
    "kv_write": lambda row: 4 * 2 * row["kv_heads"] * row["dim"],
    "topk": lambda row: 2 * row["experts"] + 8 * row["top_k"],
    "sampler": lambda row: 14 * row["vocab"],
    "gumbel": lambda row: 2 * row["vocab"],
    "quantize": lambda row: 2 * row["width"],
}
_BY_ROW_SIZE = ("topk",)  # each size has a kernel of its own


@dataclass(frozen=True)
class Small:
    """Times of the small kernels."""

    families: dict[str, list[Row]]

    def seconds(self, operator: Elementwise, rows: Floats) -> Estimate | None:
        """An operator's times at these numbers of rows, or None for one of an unmeasured family."""
        family = _BY_KIND.get(operator.kind) or _BY_NAME.get(operator.name, "norm")
        return self.of(family, operator.bytes, rows)

    def of(self, family: str, row_bytes: float, rows: Floats) -> Estimate | None:
        """A family's times for rows of so many bytes."""
        curves = self._curves.get(family)
        if curves is None:
            return None
        if family in _BY_ROW_SIZE:
            nearest = min(curves, key=lambda size: abs(np.log(size / row_bytes)))
            return along(rows, *curves[nearest])
        found = along(rows * row_bytes, *curves[0])
        return Estimate(np.where(rows > 0, found.seconds, 0.0), found.provenance)

    @cached_property
    def _curves(self) -> dict[str, dict[int, tuple[Floats, Floats]]]:
        """By family: seconds over rows by the bytes of a row; or, under 0, over bytes for rows of any size."""
        return {family: self._of(family) for family in _ROW_BYTES if family in self.families}

    def _of(self, family: str) -> dict[int, tuple[Floats, Floats]]:
        alone = family in _BY_ROW_SIZE
        points: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for row in self.families[family]:
            size = _ROW_BYTES[family](row)
            points[size if alone else 0].append((row["m"] * (1 if alone else size), row["us"] * 1e-6))
        return {size: _rising(*columns(each)) for size, each in points.items()}


def _rising(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """One point per x, and never less time for more work."""
    keep = np.unique(x)
    return keep, np.maximum.accumulate(np.array([y[x == value].mean() for value in keep]))
