"""Element-wise work: by bytes moved, separately for each row size, since a kernel is compiled for one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from steelyard.cost.bundle import Row
from steelyard.cost.interpolate import along, columns, rising
from steelyard.cost.points import OnDemand
from steelyard.cost.source import INTERPOLATED, Estimate, Floats
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
_BY_ROWS = ("topk",)  # its time depends on the number of rows, hardly on their size


@dataclass(frozen=True)
class Small:
    """Times of the small kernels."""

    families: Mapping[str, Sequence[Row]]

    def seconds(self, operator: Elementwise, rows: Floats) -> Estimate | None:
        """An operator's times at these numbers of rows, or None for one of an unmeasured family."""
        family = _BY_KIND.get(operator.kind) or _BY_NAME.get(operator.name, "norm")
        return self.of(family, operator.bytes, rows)

    def of(self, family: str, row_bytes: float, rows: Floats) -> Estimate | None:
        """A family's times for rows of ``row_bytes``: those of the nearest measured size, with as many bytes in all.

        Kernels are compiled for one row size, and times do not carry over to another: norms of 8 heads and one KV head
        take four times as long as those of 32 and 8.
        """
        curves = self._curves.get(family)
        if curves is None:
            return None
        nearest = min(curves, key=lambda size: abs(np.log(size / row_bytes)))
        found = along(rows if family in _BY_ROWS else rows * (row_bytes / nearest), *curves[nearest])
        if nearest == row_bytes:
            return found
        return Estimate(found.seconds, np.maximum(found.provenance, INTERPOLATED))

    @cached_property
    def _curves(self) -> Mapping[str, dict[int, tuple[Floats, Floats]]]:
        """By family: seconds over rows, by the bytes of a row."""
        return OnDemand({family: partial(self._of, family) for family in _ROW_BYTES if family in self.families})

    def _of(self, family: str) -> dict[int, tuple[Floats, Floats]]:
        points: dict[int, list[tuple[float, float]]] = defaultdict(list)
        for row in self.families[family]:
            points[_ROW_BYTES[family](row)].append((row["m"], row["us"] * 1e-6))
        return {size: rising(*columns(each)) for size, each in points.items()}
