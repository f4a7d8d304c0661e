"""Routed experts: measured whole, from the choices to the layer's output."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np

from steelyard.cost.bundle import Row
from steelyard.cost.interpolate import along, columns, line
from steelyard.cost.kernels import Kernel
from steelyard.cost.source import EXTRAPOLATED, Estimate, Floats
from steelyard.hardware import Gpu
from steelyard.model import RankLoad

Shape = tuple[int, float, int, int]  # experts, chosen, hidden, intermediate

# The roofline that shares are relative to; only its form matters, and its constants are chosen.
_START_SECONDS = 25e-6  # of the half dozen kernels
_OF_PEAK = 0.6
_NEIGHBOURS = 2  # shapes that an unmeasured one is predicted from; chosen
_ALIKE = 1e-6  # distance (in doublings) below which shapes are equal
_ENOUGH = 10  # points of a shape that is interpolated by itself; chosen
_TILE_ROWS = 16  # an expert's rows are padded to this at least


@dataclass(frozen=True)
class Experts:
    """Times of routed experts with even routing."""

    points: Sequence[Row]
    gpu: Gpu
    held_out: Sequence[Row] = ()  # used only for the names of kernels

    def seconds(self, shape: Shape, rows: Floats, load: RankLoad | None = None) -> Estimate:
        """A layer's times at these numbers of rows; with ``load``, on the busiest GPU."""
        own = self._measured.get(shape) if load is None else None
        if own is not None:
            return along(rows, *own)._replace(kernels=self._kernels_at(shape, rows))
        visits = rows * shape[1] if load is None else load.visits(rows)
        touched = _touched(shape, rows) if load is None else load.touched(rows)
        shapes = list(self._measured)
        apart = np.maximum(np.abs(np.log2(np.array(shapes) / np.array(shape))).sum(axis=1), _ALIKE)
        nearest = np.argsort(apart, kind="stable")[:_NEIGHBOURS]
        weights = 1.0 / apart[nearest] / (1.0 / apart[nearest]).sum()
        share = np.zeros_like(rows)
        for weight, i in zip(weights, nearest, strict=True):
            # With another number of experts, compare at equal rows per expert.
            there = shapes[i]
            alike = visits / shape[0] / (there[1] / there[0])
            x, y = self._measured[there]
            alike = np.clip(alike, x[0], None)
            share += weight * np.log(line(alike, x, y) / self._ideal(there, alike * there[1], _touched(there, alike)))
        seconds = np.exp(share) * self._ideal(shape, visits, touched)
        return Estimate.all_of(np.where(rows > 0, seconds, 0.0), EXTRAPOLATED)

    @property
    def lack(self) -> str | None:
        """What there is too little of to predict a time."""
        if not self.points or self._measured:
            return None
        return f"no shape is measured with even routing (zipf 0) at {_ENOUGH} numbers of rows m or more"

    def _kernels_at(self, shape: Shape, rows: Floats) -> list[Kernel] | None:
        """The kernel of the nearest point: engines use the kernel tuned for the nearest number of rows."""
        known = self._kernels.get(shape)
        if known is None:
            return None
        at = np.array(sorted(known))
        nearest = at[np.searchsorted((at[1:] + at[:-1]) / 2, rows, side="right")]
        return [known[there] for there in nearest.tolist()]

    @cached_property
    def _kernels(self) -> dict[Shape, dict[int, Kernel]]:
        """By shape and rows, if the profile names them."""
        found: dict[Shape, dict[int, Kernel]] = defaultdict(dict)
        rows = [row for row in (*self.points, *self.held_out) if "kernel" in row]
        took = {row["kernel"]: row["compile_s"] for row in rows if "compile_s" in row}
        usual = fmean(took.values()) if took else 1.0
        for row in rows:
            found[_shape(row)][row["m"]] = Kernel(row["kernel"], took.get(row["kernel"], usual) / usual)
        return dict(found)

    @cached_property
    def _measured(self) -> dict[Shape, tuple[Floats, Floats]]:
        """Measured rows and seconds of each shape that was measured at more than a few."""
        found: dict[Shape, list[tuple[float, float]]] = defaultdict(list)
        for row in self.points:
            if not row["zipf"]:
                found[_shape(row)].append((row["m"], row["us"] * 1e-6))
        return {shape: columns(each) for shape, each in found.items() if len(each) >= _ENOUGH}

    def _ideal(self, shape: Shape, visits: Floats, touched: Floats) -> Floats:
        """The roofline: weights of chosen experts are read, and each expert works on whole tiles of rows."""
        _, _, hidden, inter = shape
        worked = visits + touched * _TILE_ROWS / 2
        memory = 6.0 * touched * hidden * inter / self.gpu.memory_bandwidth
        return _START_SECONDS + memory + 6.0 * worked * hidden * inter / (_OF_PEAK * self.gpu.peak("bf16"))


def _touched(shape: Shape, rows: Floats) -> Floats:
    """Experts that any row chose."""
    return shape[0] * (1.0 - (1.0 - shape[1] / shape[0]) ** rows)


def _shape(row: Row) -> Shape:
    return row["experts"], row["top_k"], row["hidden"], row["inter"]
