"""Matrix multiplications: measured shapes over their rows, other shapes from similar ones.

The narrowest tile has eight rows, so the time is constant up to the next multiple of eight. Libraries choose from other
kernels for multiples of eight than for other numbers of rows: these are two staircases, measured separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.bundle import Row
from steelyard.cost.measured.staircase import LEAST_ROWS, TILE_ROWS, MatrixTimes, Staircase
from steelyard.cost.points import Mask, PointTable
from steelyard.cost.source import Estimate, Floats
from steelyard.hardware import Gpu


@dataclass(frozen=True)
class Matrices:
    """Times of m x k times k x n in one data type."""

    points: Sequence[Row]
    gpu: Gpu
    weight_bytes: float
    dtype: str

    def seconds(self, n: int, k: int, rows: Floats) -> Estimate:
        """A shape's times at these numbers of rows."""
        found = Estimate(np.zeros(rows.shape), np.zeros(rows.shape, dtype=np.int8))
        whole = rows % TILE_ROWS == 0
        for stairs, here in ((self._whole, whole), (self._broken, ~whole)):
            there = stairs.seconds((n, k), rows[here])
            found.seconds[here], found.provenance[here] = there.seconds, there.provenance
        return found

    @property
    def lack(self) -> str | None:
        """What there is too little of to predict a time."""
        if not self.points or all(stairs.has_grid for stairs in (self._whole, self._broken)):
            return None
        return f"fewer than {LEAST_ROWS} numbers of rows m are measured for a quarter of the shapes"

    @cached_property
    def _whole(self) -> Staircase:
        """Rows in whole tiles, to which engines pad captured graphs."""
        return self._stairs(self._rows % TILE_ROWS == 0)

    @cached_property
    def _broken(self) -> Staircase:
        """Rows whose last tile is not full."""
        return self._stairs(self._rows % TILE_ROWS > 0)

    def _stairs(self, chosen: Mask) -> Staircase:
        """The staircase of the chosen points; a profile without such rows has one staircase for all."""
        enough = bool((self._rows[chosen] > TILE_ROWS).any())
        chosen = chosen if enough else np.ones_like(chosen)
        times = MatrixTimes.of(PointTable.of(self.points), chosen)
        return Staircase(times, self.gpu, self.weight_bytes, self.dtype)

    @cached_property
    def _rows(self) -> NDArray[Any]:
        return PointTable.of(self.points).array("m")
