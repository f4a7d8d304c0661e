"""Routed layers: tables of the whole layer, by the part that one GPU holds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from steelyard.cost.interpolate import along, rising
from steelyard.cost.silicon import expert_parallel
from steelyard.cost.silicon.database import Database, Origin, seconds
from steelyard.cost.silicon.gemm import dtype_of
from steelyard.cost.source import EXTRAPOLATED, Estimate, Floats
from steelyard.hardware import Gpu
from steelyard.model import GroupedGemm

# Of the tables' three kinds of routing, the mild power law. "balanced" sends a few tokens to experts that all differ,
# which no router does: even an even choice hits some experts twice.
_ROUTING = "power_law_1.01"
_IDEAL_SECONDS = 1e-5  # start of the handful of kernels, in the roofline that scales other shapes; chosen
_FOUR_BITS = ("int4_wo", "w4a16_mxfp4")
_KERNEL = "kernel_source"


@dataclass(frozen=True)
class LayerShape:
    """What one GPU holds of a routed layer."""

    experts: int
    top_k: float  # choices of a token on this GPU
    hidden: int
    width: float  # of an expert, on this GPU

    def touched(self, rows: Floats) -> Floats:
        """Experts that any token chose, with even routing."""
        return self.experts * (1.0 - (1.0 - self.top_k / self.experts) ** rows)

    def ideal(self, gpu: Gpu, gemm: GroupedGemm, visits: Floats, touched: Floats) -> Floats:
        """Seconds at the roofline, to scale a measured shape's time to another one."""
        elements = 3.0 * self.hidden * self.width
        arithmetic = 2.0 * visits * elements / gpu.peak(gemm.compute)
        memory = touched * elements * gemm.weight_bytes / gpu.memory_bandwidth
        return np.maximum(arithmetic, memory) + _IDEAL_SECONDS


def shape_of(gemm: GroupedGemm) -> LayerShape:
    """The layer of these gate and up matrices."""
    return LayerShape(gemm.experts, gemm.choices, gemm.k, gemm.n / 2)


def estimate(
    database: Database, gpu: Gpu, gemm: GroupedGemm, rows: Floats, kernel: str = ""
) -> tuple[Estimate, Origin] | None:
    """Seconds of the whole layer for each number of tokens: from its own shape, else scaled from the nearest.

    ``kernel`` is a part of the name of the kernel that must have been timed; any will do without it.
    """
    dtypes = _dtypes(gemm)
    apart = None if kernel else expert_parallel.estimate(database, gpu, gemm, dtypes, rows)
    if apart is not None:
        return apart
    wanted = shape_of(gemm)
    tables = [(origin, _layers(origin, dtype, kernel)) for dtype in dtypes for origin in _origins(database)]
    for origin, layers in tables:
        if wanted in layers and gemm.load is None:
            return along(rows, *layers[wanted]), origin
    for origin, layers in tables:
        if layers:
            nearest = min(layers, key=lambda shape: _distance(shape, wanted))
            alike = rows if gemm.load is None else gemm.visits(rows) / gemm.choices
            there = along(alike, *layers[nearest])
            here = wanted.ideal(gpu, gemm, gemm.visits(rows), gemm.touched(rows))
            scale = here / nearest.ideal(gpu, gemm, alike * nearest.top_k, nearest.touched(alike))
            return Estimate.all_of(there.seconds * scale, EXTRAPOLATED), origin
    return None


def _origins(database: Database) -> tuple[Origin, ...]:
    return database.origins("moe", "moe_perf")


def _dtypes(gemm: GroupedGemm) -> tuple[str, ...]:
    """The tables' names for the weights; two kinds of 4-bit weights with 16-bit arithmetic differ in size."""
    dtype = dtype_of(gemm)
    if dtype != "int4_wo":
        return (dtype,)
    microscaled = gemm.weight_bytes == 0.5 + 1 / 32
    return _FOUR_BITS[::-1] if microscaled else _FOUR_BITS


@cache
def _layers(origin: Origin, dtype: str, kernel: str) -> dict[LayerShape, tuple[Floats, Floats]]:
    """Shape on one GPU -> measured tokens and seconds, with tensor-parallel experts."""
    names = ["num_experts", "topk", "hidden_size", "inter_size", "moe_tp_size", "num_tokens", "latency"]
    named = names if not kernel else [*names, _KERNEL]
    table = origin.read(*named, moe_dtype=dtype, moe_ep_size=1, distribution=_ROUTING)
    if kernel:
        chosen = np.array([kernel in name for name in table[_KERNEL].tolist()], dtype=bool)
        table = {name: column[chosen] for name, column in table.items()}
    keys = np.stack([table[name] for name in names[:5]], axis=1) if len(table["topk"]) else np.zeros((0, 5))
    times = seconds(table["latency"])
    layers = {}
    for key in np.unique(keys, axis=0):
        here = (keys == key).all(axis=1)
        experts, top_k, hidden, inter, slices = (int(value) for value in key)
        shape = LayerShape(experts, top_k, hidden, inter / slices)
        layers[shape] = rising(table["num_tokens"][here].astype(np.float64), times[here])
    return layers


def _distance(one: LayerShape, other: LayerShape) -> float:
    sides = ((one.experts, other.experts), (one.top_k, other.top_k), (one.hidden, other.hidden))
    return sum(abs(float(np.log2(a / b))) for a, b in (*sides, (one.width, other.width)))
