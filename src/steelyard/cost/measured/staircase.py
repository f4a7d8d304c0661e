"""Matrix times over rows, for rows whose kernels a library chooses from one set.

They have steps and spikes, since the library's choice is not smooth, but matrices of similar size share many of these.
So a shape takes the form of the curve from similar shapes wherever its own points have a gap or end, and also the level
if it has no points.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.points import PointTable
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, MEASURED, Estimate, Floats
from steelyard.hardware import Gpu

Shape = tuple[int, int]  # outputs, inputs

TILE_ROWS = 8  # of the narrowest tile of tensor cores
# Chosen; the errors on held-out points (docs/profiles.md) are with these values.
_NEIGHBOURS = 6
_INPUTS_COUNT = 0.7  # weight of a factor in inputs, relative to one in outputs, in the distance of two matrices
_NEAREST = 0.02  # added to distances, so that no neighbour has all the weight
_USUAL = 0.25  # rows at which at least this share of the shapes was measured form the grid
LEAST_ROWS = 8  # of the grid: with fewer, curves have no form; chosen
# The roofline that shares are relative to; only its form matters. Bounds add up, since they rarely overlap in full.
_START_SECONDS = 5e-6
_OF_PEAK = 0.7


def tiled(rows: Floats) -> Floats:
    """Rows rounded up to whole tiles; the first tile is not, since one row is a matrix-vector product."""
    whole: Floats = np.where(rows < TILE_ROWS, rows, np.ceil(rows / TILE_ROWS) * TILE_ROWS)
    return whole


@dataclass(frozen=True)
class MatrixTimes:
    """Measured matrices by column, sorted by shape and rows."""

    shapes: NDArray[np.int64]  # outputs and inputs of each shape, in the order in which shapes were measured
    shape: NDArray[np.int64]  # which of them
    rows: Floats
    seconds: Floats
    here: NDArray[np.bool_]  # measured on this GPU, not carried over from another

    @classmethod
    def of(cls, points: PointTable, chosen: NDArray[np.bool_]) -> MatrixTimes:
        """From those points of a profile."""
        n, k = points.array("n")[chosen], points.array("k")[chosen]
        _, first, shape = np.unique(n * (k.max() + 1) + k, return_index=True, return_inverse=True)
        first, rank = np.sort(first), np.argsort(np.argsort(first))
        rows = points.array("m")[chosen].astype(np.float64)
        seconds = points.array("us")[chosen] * 1e-6
        order = np.lexsort((seconds, rows, rank[shape]))
        here = ~points.are("carried", True)[chosen]
        shapes = np.stack([n[first], k[first]], axis=1)
        return cls(shapes, rank[shape][order], rows[order], seconds[order], here[order])

    @cached_property
    def places(self) -> dict[Shape, slice]:
        """The slice of each shape."""
        ends = np.searchsorted(self.shape, np.arange(len(self.shapes) + 1)).tolist()
        return {(n, k): slice(*ends[i : i + 2]) for i, (n, k) in enumerate(self.shapes.tolist())}


@dataclass(frozen=True)
class Staircase:
    """Times of m x k times k x n over m, in one data type and for one kind of rows."""

    times: MatrixTimes
    gpu: Gpu
    weight_bytes: float
    dtype: str
    _curves: dict[Shape, tuple[Floats, Floats, float]] = field(default_factory=dict)

    def seconds(self, shape: Shape, rows: Floats) -> Estimate:
        """A shape's times at these numbers of rows: linear between tiles, zero for no rows."""
        x, y, last = self._curve(shape)
        own = self.times.places.get(shape)
        provenance = np.full(rows.shape, INTERPOLATED)
        if own is not None:
            provenance[np.isin(rows, self.times.rows[own][self.times.here[own]])] = MEASURED
        tiles = tiled(rows)
        provenance[tiles > last] = EXTRAPOLATED
        return Estimate(np.where(rows > 0, _line(tiles, x, y), 0.0), provenance.astype(np.int8))

    @property
    def has_grid(self) -> bool:
        """Whether some numbers of rows are measured for many shapes, so that these can fill each other's gaps."""
        return len(self._grid) >= LEAST_ROWS

    def _curve(self, shape: Shape) -> tuple[Floats, Floats, float]:
        """Seconds over rows, and the largest number of rows with a measurement."""
        found = self._curves.get(shape)
        if found is None:
            own = self.times.places.get(shape)
            if own is None:
                found = self._grid, self._predicted(shape), float(self._grid[-1]) if self._inside(shape) else 0.0
            else:
                rows = tiled(self.times.rows[own])
                found = *self._filled(shape, rows, self.times.seconds[own]), float(rows[-1])
            self._curves[shape] = found
        return found

    @cached_property
    def _shapes(self) -> Floats:
        return np.log2(self.times.shapes.astype(np.float64))

    @cached_property
    def _tiles(self) -> Floats:
        return tiled(self.times.rows)

    @cached_property
    def _grid(self) -> Floats:
        rows, counts = np.unique(self._tiles, return_counts=True)
        usual: Floats = rows[counts >= _USUAL * len(self.times.shapes)]
        return usual

    @cached_property
    def _shares(self) -> Floats:
        """Log of measured over ideal seconds, by shape and row of the grid; NaN where not measured."""
        table = np.full((len(self.times.shapes), len(self._grid)), np.nan)
        place = np.searchsorted(self._grid, self._tiles)
        usual = self._grid[np.minimum(place, len(self._grid) - 1)] == self._tiles
        which, rows = self.times.shape[usual], self._tiles[usual]
        n, k = self.times.shapes[which].T.astype(np.float64)
        table[which, place[usual]] = np.log(self.times.seconds[usual] / self._ideal(n, k, rows))
        return table

    def _ideal(self, n: float | Floats, k: float | Floats, rows: Floats) -> Floats:
        memory = (self.weight_bytes * n * k + 2.0 * rows * (n + k)) / self.gpu.memory_bandwidth
        return _START_SECONDS + memory + 2.0 * rows * n * k / (_OF_PEAK * self.gpu.peak(self.dtype))

    def _predicted(self, shape: Shape) -> Floats:
        """Predicted seconds at the grid's rows, from the nearest other shapes measured there; NaN if none was."""
        apart = np.abs(self._shapes - np.log2(shape)) @ np.array([1.0, _INPUTS_COUNT])
        order = np.argsort(apart, kind="stable")
        order = order[apart[order] > 0]
        shares = self._shares[order]
        there = np.isfinite(shares)
        nearest = there & (np.cumsum(there, axis=0) <= _NEIGHBOURS)
        weights = nearest / (apart[order] + _NEAREST)[:, None]
        total = weights.sum(axis=0)
        summed = (weights * np.where(there, shares, 0.0)).sum(axis=0)
        mean = np.divide(summed, total, out=np.full(total.shape, np.nan), where=total > 0)
        predicted: Floats = np.exp(mean) * self._ideal(*shape, self._grid)
        return predicted

    def _filled(self, shape: Shape, rows: Floats, seconds: Floats) -> tuple[Floats, Floats]:
        """A shape's own points, with predictions at the grid's rows that it lacks."""
        lacking = self._grid[~np.isin(self._grid, rows) & (self._grid > rows[0])]
        if not len(lacking):
            return rows, seconds
        form = self._predicted(shape)
        known = np.isfinite(form)
        level = np.log(seconds / np.exp(np.interp(np.log(rows), np.log(self._grid[known]), np.log(form[known]))))
        filled = np.exp(np.interp(lacking, rows, level)) * form[np.isin(self._grid, lacking)]
        x = np.concatenate([rows, lacking])
        order = np.argsort(x)
        return x[order], np.concatenate([seconds, filled])[order]

    def _inside(self, shape: Shape) -> bool:
        low, high = self._shapes.min(axis=0), self._shapes.max(axis=0)
        return bool((low <= np.log2(shape)).all() and (np.log2(shape) <= high).all())


def _line(at: Floats, x: Floats, y: Floats) -> Floats:
    """Linear between points; beyond the last with the slope of the upper half, since one step says little."""
    base = max(x[0], x[-1] / 2)
    if base == x[-1]:
        return np.full(at.shape, y[-1])
    climb = (y[-1] - np.interp(base, x, y)) / (x[-1] - base)
    return np.where(at > x[-1], y[-1] + (at - x[-1]) * climb, np.interp(at, x, y))
