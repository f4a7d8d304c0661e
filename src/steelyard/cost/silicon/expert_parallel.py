"""Routed layers with expert parallelism, where all GPUs have all tokens.

The tables time one GPU of ``moe_ep_size``: every token comes in; choices of experts on other GPUs are skipped by the
matrices but still activated and summed. Of the three kinds of routing only "balanced" defines this GPU's work: its even
share of choices, of different experts as far as possible. Any other load is scaled from there by its work; the kernels'
start is not scaled.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from steelyard.cost.interpolate import along, rising
from steelyard.cost.silicon.database import Database, Origin, seconds
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, Estimate, Floats
from steelyard.hardware import Gpu
from steelyard.model import GroupedGemm

_ROUTING = "balanced"
_ACTIVATION_BYTES = 2.0  # bfloat16
_Points = tuple[Floats, Floats]


@dataclass(frozen=True)
class ExpertParallelShape:
    """A routed layer under expert parallelism; ``width`` is that of an expert on one GPU."""

    experts: float  # of one GPU
    choices: float  # of a token that fall to one GPU
    hidden: int
    width: float
    ranks: int

    def ideal(self, gpu: Gpu, gemm: GroupedGemm, tokens: Floats, visits: Floats, touched: Floats) -> Floats:
        """Seconds at the roofline: matrices of the chosen experts, then rows of choices on other GPUs."""
        elements = 3.0 * self.hidden * self.width
        arithmetic = 2.0 * visits * elements / gpu.peak(gemm.compute)
        memory = touched * elements * gemm.weight_bytes / gpu.memory_bandwidth
        passed = (self.ranks - 1) * self.choices * tokens * (5.0 * self.width + 2.0 * self.hidden) * _ACTIVATION_BYTES
        return np.maximum(arithmetic, memory) + passed / gpu.memory_bandwidth

    def even(self, gpu: Gpu, gemm: GroupedGemm, tokens: Floats) -> Floats:
        """The same for tokens routed as in the tables."""
        visits = tokens * self.choices
        return self.ideal(gpu, gemm, tokens, visits, np.minimum(visits, self.experts))

    def distance(self, other: ExpertParallelShape) -> float:
        """In doublings."""
        sides = ((self.experts, other.experts), (self.choices, other.choices), (self.hidden, other.hidden))
        more = ((self.width, other.width), (self.ranks, other.ranks))
        return sum(abs(float(np.log2(a / b))) for a, b in (*sides, *more))


def shape_of(gemm: GroupedGemm) -> ExpertParallelShape | None:
    """The layer of these gate and up matrices; None if tokens are only sent to GPUs with one of their experts."""
    if not gemm.elsewhere:
        return None
    ranks = round(gemm.top_k / (gemm.top_k - gemm.elsewhere))
    return ExpertParallelShape(gemm.experts, gemm.choices, gemm.k, gemm.n / 2, ranks)


def are_timed(database: Database) -> bool:
    """Whether there are any such tables."""
    return any(_timed(origin) for origin in database.origins("moe", "moe_perf"))


def estimate(
    database: Database, gpu: Gpu, gemm: GroupedGemm, dtypes: tuple[str, ...], rows: Floats
) -> tuple[Estimate, Origin] | None:
    """Seconds of the whole layer on the busiest GPU for each number of tokens of all GPUs."""
    wanted = shape_of(gemm)
    if wanted is None:
        return None
    tables = [(origin, _layers(origin, dtype)) for dtype in dtypes for origin in database.origins("moe", "moe_perf")]
    exact = next(((origin, wanted, layers) for origin, layers in tables if wanted in layers), None)
    nearest = ((origin, min(layers, key=wanted.distance), layers) for origin, layers in tables if layers)
    found = exact or next(nearest, None)
    if found is None:
        return None
    origin, there, layers = found
    tokens, times = layers[there]
    start = max(0.0, float(times[0] - there.even(gpu, gemm, tokens[:1])[0]))
    measured = along(rows, tokens, times)
    here = wanted.ideal(gpu, gemm, rows, gemm.visits(rows), gemm.touched(rows))
    scale = here / np.maximum(there.even(gpu, gemm, rows), 1e-12)
    carried = start + np.maximum(measured.seconds - start, 0.0) * scale
    least = INTERPOLATED if exact and _even(gemm) else EXTRAPOLATED
    provenance = np.maximum(measured.provenance, least).astype(np.int8)
    return Estimate(np.where(rows > 0, carried, 0.0), provenance), origin


def _even(gemm: GroupedGemm) -> bool:
    return gemm.load is None or len({chance for own in gemm.load.chances for chance in own}) == 1


@cache
def _timed(origin: Origin) -> bool:
    table = origin.read("moe_ep_size", distribution=_ROUTING)
    return bool((table["moe_ep_size"] > 1).any())


@cache
def _layers(origin: Origin, dtype: str) -> dict[ExpertParallelShape, _Points]:
    """Shape -> measured tokens and seconds."""
    names = ("num_experts", "topk", "hidden_size", "inter_size", "moe_tp_size", "moe_ep_size", "num_tokens", "latency")
    table = origin.read(*names, moe_dtype=dtype, distribution=_ROUTING)
    keys = np.stack([table[name] for name in names[:6]], axis=1) if len(table["topk"]) else np.zeros((0, 6))
    times = seconds(table["latency"])
    layers = {}
    for key in np.unique(keys[keys[:, 5] > 1], axis=0):
        here = (keys == key).all(axis=1)
        experts, top_k, hidden, inter, slices, ranks = (int(value) for value in key)
        shape = ExpertParallelShape(experts / ranks, top_k / ranks, hidden, inter / slices, ranks)
        layers[shape] = rising(table["num_tokens"][here].astype(np.float64), times[here])
    return layers
