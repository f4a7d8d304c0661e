"""Matrix multiplications: measured shapes along their rows, others by what their neighbours reach.

Libraries pick a kernel by rules of their own, so time over rows has steps and spikes that matrices of like size share.
A shape takes the form from its neighbours wherever its own points leave a gap, and their level too if it has none.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from steelyard.cost.bundle import Row
from steelyard.cost.interpolate import columns, line, standing, trend
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, Estimate, Floats
from steelyard.hardware import Gpu

Shape = tuple[int, int]  # outputs, inputs

_NEIGHBOURS = 6
_INPUTS_COUNT = 0.7  # how far apart a factor in inputs puts two matrices, against one in outputs
_NEAREST = 0.02  # so that no neighbour counts for everything
_CALM_ROWS = 64  # up to here one tile of rows does, and few kernels are to choose from
_AROUND = 6  # measured rows around one that was not
_USUAL = 0.25  # rows that this share of the shapes was measured at are on the grid
# A roofline that shares are taken of; only its form matters. Bounds add up, since they rarely overlap in full.
_START_SECONDS = 5e-6
_OF_PEAK = 0.7
_TILE_ROWS = 64


@dataclass(frozen=True)
class Matrices:
    """Times of m x k times k x n in one data type."""

    points: list[Row]
    gpu: Gpu
    weight_bytes: float
    dtype: str

    def seconds(self, n: int, k: int, rows: Floats) -> Estimate:
        """A shape's times at these numbers of rows."""
        own = self._measured.get((n, k))
        if own is None:
            x, y = self._grid, self._foretold((n, k))
            provenance = np.where((rows > x[-1]) | (not self._inside(n, k)), EXTRAPOLATED, INTERPOLATED).astype(np.int8)
        else:
            x, y = self._filled((n, k), *own)
            provenance = standing(rows, own[0])
        found = line(rows, x, y)
        jumps = (rows > _CALM_ROWS) & (rows < x[-1]) & ~np.isin(rows, x)
        found[jumps] = trend(rows[jumps], x, y, _AROUND)
        return Estimate(np.where(rows > 0, found, 0.0), provenance)

    @cached_property
    def _measured(self) -> dict[Shape, tuple[Floats, Floats]]:
        """Measured rows and seconds of each shape."""
        found: dict[Shape, list[tuple[float, float]]] = defaultdict(list)
        for row in self.points:
            found[row["n"], row["k"]].append((row["m"], row["us"] * 1e-6))
        return {shape: columns(each) for shape, each in found.items()}

    @cached_property
    def _shapes(self) -> Floats:
        return np.log2(np.array(list(self._measured), dtype=np.float64))

    @cached_property
    def _grid(self) -> Floats:
        rows, counts = np.unique(np.concatenate([rows for rows, _ in self._measured.values()]), return_counts=True)
        usual: Floats = rows[counts >= _USUAL * len(self._measured)]
        return usual

    @cached_property
    def _shares(self) -> Floats:
        """Log of measured over ideal seconds, by shape and row of the grid; NaN where not measured."""
        table = np.full((len(self._measured), len(self._grid)), np.nan)
        for shares, (shape, (rows, seconds)) in zip(table, self._measured.items(), strict=True):
            usual = np.isin(rows, self._grid)
            shares[np.searchsorted(self._grid, rows[usual])] = np.log(seconds[usual] / self._ideal(shape, rows[usual]))
        return table

    def _ideal(self, shape: Shape, rows: Floats) -> Floats:
        n, k = shape
        padded = np.ceil(rows / _TILE_ROWS) * _TILE_ROWS
        memory = (self.weight_bytes * n * k + 2.0 * rows * (n + k)) / self.gpu.memory_bandwidth
        return _START_SECONDS + memory + 2.0 * padded * n * k / (_OF_PEAK * self.gpu.peak(self.dtype))

    def _foretold(self, shape: Shape) -> Floats:
        """Seconds at the grid's rows from the nearest other shapes that were measured there."""
        apart = np.abs(self._shapes - np.log2(shape)) @ np.array([1.0, _INPUTS_COUNT])
        order = np.argsort(apart, kind="stable")
        order = order[apart[order] > 0]
        shares = self._shares[order]
        there = np.isfinite(shares)
        nearest = there & (np.cumsum(there, axis=0) <= _NEIGHBOURS)
        weights = nearest / (apart[order] + _NEAREST)[:, None]
        mean = (weights * np.where(there, shares, 0.0)).sum(axis=0) / weights.sum(axis=0)
        foretold: Floats = np.exp(mean) * self._ideal(shape, self._grid)
        return foretold

    def _filled(self, shape: Shape, rows: Floats, seconds: Floats) -> tuple[Floats, Floats]:
        """A shape's own points, and between them those of the grid that it lacks."""
        lacking = self._grid[~np.isin(self._grid, rows) & (self._grid > rows[0]) & (self._grid < rows[-1])]
        if not len(lacking):
            return rows, seconds
        form = self._foretold(shape)
        level = np.log(seconds / np.exp(np.interp(np.log(rows), np.log(self._grid), np.log(form))))
        filled = np.exp(np.interp(lacking, rows, level)) * form[np.isin(self._grid, lacking)]
        x = np.concatenate([rows, lacking])
        order = np.argsort(x)
        return x[order], np.concatenate([seconds, filled])[order]

    def _inside(self, n: int, k: int) -> bool:
        low, high = self._shapes.min(axis=0), self._shapes.max(axis=0)
        return bool((low <= np.log2((n, k))).all() and (np.log2((n, k)) <= high).all())
