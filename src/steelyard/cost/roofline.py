"""The analytic source: every operator is bound by arithmetic or by memory, at what real kernels reach of the peak.

The shares below are what well-tuned kernels reach on data-centre GPUs; none belongs to one model or workload.
Numbers from here are labelled *analytic*; measured profiles replace them operator by operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.cost.collectives import allgather, allreduce
from steelyard.cost.source import Floats, Provenance, RowOperator
from steelyard.hardware import Gpu
from steelyard.model import AttentionOperator, AttentionShape, Collective, Elementwise, Gemm, GroupedGemm

KERNEL_SECONDS = 2.5e-6  # start, ramp and drain of one kernel inside a CUDA graph
GEMM_ARITHMETIC = 0.75  # of the dense peak, for large matrices
GEMM_MEMORY = 0.82  # of peak bandwidth, streaming weights
GROUPED_ARITHMETIC = 0.55
GROUPED_MEMORY = 0.70
ATTENTION_ARITHMETIC = 0.60
ATTENTION_MEMORY = 0.80
ELEMENTWISE_MEMORY = 0.75
TILE = 128  # rows and columns that one streaming multiprocessor works on at a time


@dataclass(frozen=True)
class Roofline:
    """Operator times on one kind of GPU."""

    gpu: Gpu
    tp: int = 1
    provenance: Provenance = "analytic"

    def rows(self, operator: RowOperator, rows: Floats) -> Floats:
        if isinstance(operator, Gemm):
            return self._gemm(operator, rows)
        if isinstance(operator, GroupedGemm):
            return self._grouped(operator, rows)
        if isinstance(operator, Collective):
            time = allreduce if operator.kind == "allreduce" else allgather
            return np.where(rows > 0, time(self.gpu, self.tp, rows * operator.bytes), 0.0)
        return self._elementwise(operator, rows)

    def _gemm(self, gemm: Gemm, rows: Floats) -> Floats:
        flops = 2.0 * rows * gemm.k * gemm.n
        moved = gemm.k * gemm.n * gemm.weight_bytes + 2.0 * rows * (gemm.k + gemm.n)
        peak = self.gpu.peak(gemm.compute) * GEMM_ARITHMETIC * self._tile_use(rows, gemm.n)
        return self._bound(rows, flops / peak, moved / (self.gpu.memory_bandwidth * GEMM_MEMORY))

    def _grouped(self, gemm: GroupedGemm, rows: Floats) -> Floats:
        """Experts that no token chose are not read; the rest see their share of the rows each."""
        chosen = gemm.experts * (1.0 - (1.0 - gemm.top_k / gemm.experts) ** rows)
        visits = rows * gemm.top_k
        flops = 2.0 * visits * gemm.k * gemm.n
        moved = chosen * gemm.k * gemm.n * gemm.weight_bytes + 2.0 * visits * (gemm.k + gemm.n)
        peak = self.gpu.peak(gemm.compute) * GROUPED_ARITHMETIC
        return self._bound(rows, flops / peak, moved / (self.gpu.memory_bandwidth * GROUPED_MEMORY))

    def _elementwise(self, operator: Elementwise, rows: Floats) -> Floats:
        moved = rows * operator.bytes
        return self._bound(rows, np.zeros_like(rows), moved / (self.gpu.memory_bandwidth * ELEMENTWISE_MEMORY))

    @staticmethod
    def _bound(rows: Floats, arithmetic: Floats, memory: Floats) -> Floats:
        return np.where(rows > 0, np.maximum(arithmetic, memory) + KERNEL_SECONDS, 0.0)

    def _tile_use(self, rows: Floats, columns: int) -> Floats:
        """The share of multiprocessors at work: the last wave of tiles is seldom full."""
        tiles = np.ceil(np.maximum(rows, 1.0) / TILE) * np.ceil(columns / TILE)
        waves = tiles / self.gpu.sms
        return np.where(waves < 1.0, 1.0, waves / np.ceil(waves))

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> tuple[float, float]:
        arithmetic = operator.decode.flops_per_pair / (self.gpu.peak(operator.compute) * ATTENTION_ARITHMETIC)
        memory = operator.kv_elements * kv_bytes / (self.gpu.memory_bandwidth * ATTENTION_MEMORY)
        return KERNEL_SECONDS, max(arithmetic, memory)

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> _Prefill:
        return _Prefill(
            per_pair=operator.prefill.flops_per_pair / (self.gpu.peak(operator.compute) * ATTENTION_ARITHMETIC),
            per_token=operator.kv_elements * kv_bytes / (self.gpu.memory_bandwidth * ATTENTION_MEMORY),
            tile_rows=_tile_rows(operator.prefill),
            sms=self.gpu.sms,
            window=operator.window,
        )


def _tile_rows(shape: AttentionShape) -> float:
    """Query tiles per prompt token over all heads."""
    return shape.heads / TILE


@dataclass(frozen=True)
class _Prefill:
    """Pairs of query and key tokens at the arithmetic rate, but at least the cache read once.

    A short chunk has fewer query tiles than the GPU has multiprocessors, and runs that much slower.
    """

    per_pair: float
    per_token: float
    tile_rows: float
    sms: int
    window: int | None

    def seconds(self, tokens: int, before: int) -> float:
        if self.window is not None:
            before = min(before, self.window)
            pairs = min(tokens * before + tokens * (tokens + 1) // 2, tokens * self.window)
        else:
            pairs = tokens * before + tokens * (tokens + 1) // 2
        busy = min(1.0, max(tokens * self.tile_rows, 1.0) / self.sms)
        return KERNEL_SECONDS + max(pairs * self.per_pair / busy, (before + tokens) * self.per_token)
