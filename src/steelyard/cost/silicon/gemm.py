"""Matrices: times on a lattice of columns and inner sizes, linear between its points."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from steelyard.cost.interpolate import along, between
from steelyard.cost.silicon.database import Database, Origin, seconds
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, MEASURED, Estimate, Floats
from steelyard.model import Gemm, GroupedGemm

# A few rows of a tiny matrix: a table in which even that takes this long was timed with launches by the host.
_LAUNCHED_SECONDS = 2e-5


def dtype_of(gemm: Gemm | GroupedGemm) -> str:
    """The tables' name for how weights are stored and multiplied."""
    if gemm.weight_bytes == 2:
        return "bfloat16"
    if gemm.compute == "fp8":
        return "fp8" if gemm.weight_bytes == 1 else "fp8_block"
    if gemm.compute == "fp4":
        return "nvfp4"
    if gemm.compute == "int8":
        return "int8"
    return "int4_wo" if gemm.weight_bytes < 1 else "int8_wo"


@dataclass(frozen=True)
class Lattice:
    """Seconds by columns, inner size and rows."""

    origin: Origin
    columns: Floats
    inner: Floats
    rows: Floats
    seconds: Floats

    def estimate(self, gemm: Gemm, rows: Floats) -> Estimate | None:
        """Seconds for each number of rows, unless a corner around the matrix is missing."""
        i, u = between(self.columns, gemm.n)
        j, v = between(self.inner, gemm.k)
        here = np.zeros(len(self.rows))
        for di, share_n in ((0, 1 - u), (1, u)):
            for dj, share_k in ((0, 1 - v), (1, v)):
                if share_n * share_k:
                    here += share_n * share_k * self.seconds[i + di, j + dj]
        if np.isnan(here).any():
            return None
        found = along(rows, self.rows, here)
        at_best = MEASURED if {u, v} <= {0.0, 1.0} else INTERPOLATED
        if u > 1 or v > 1:
            at_best = EXTRAPOLATED
        return Estimate(found.seconds, np.maximum(found.provenance, at_best).astype(np.int8))


def find_lattice(database: Database, dtype: str) -> Lattice | None:
    """The first table that has the type, except those that include launches by the host."""
    for origin in database.origins("gemm", "gemm_perf"):
        lattice = _lattice(origin, dtype)
        if lattice is not None and np.nanmin(lattice.seconds) < _LAUNCHED_SECONDS:
            return lattice
    return None


@cache
def _lattice(origin: Origin, dtype: str) -> Lattice | None:
    table = origin.read("n", "k", "m", "latency", gemm_dtype=dtype)
    if not len(table["m"]):
        return None
    sides = [np.unique(table[side], return_inverse=True) for side in ("n", "k", "m")]
    times = np.full([len(values) for values, _ in sides], np.nan)
    times[tuple(place for _, place in sides)] = seconds(table["latency"])
    columns, inner, rows = (values.astype(np.float64) for values, _ in sides)
    return Lattice(origin, columns, inner, rows, _filled(times, rows))


def _filled(times: Floats, rows: Floats) -> Floats:
    """The lattice with single missing row counts interpolated."""
    for i, j in zip(*np.nonzero(np.isnan(times).any(axis=2) & ~np.isnan(times).all(axis=2)), strict=True):
        known = ~np.isnan(times[i, j])
        times[i, j] = np.interp(rows, rows[known], times[i, j][known])
    return times
