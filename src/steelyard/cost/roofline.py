"""The analytic source: every operator is bound by arithmetic or memory, at the share of the peak that kernels reach.

Its times are labelled *analytic*; measured profiles replace them operator by operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.cost.collectives import Collectives
from steelyard.cost.precision import precision_of
from steelyard.cost.recurrence import RecurrenceDecodes, RecurrencePrefill, ScanRates
from steelyard.cost.source import ANALYTIC, Curve, Decodes, Estimate, Floats, RowOperator
from steelyard.hardware import Gpu, Topology, topology_of
from steelyard.model import (
    AttentionOperator,
    AttentionShape,
    Collective,
    Elementwise,
    Gemm,
    GroupedGemm,
    Recurrence,
)

# Shares of the peak that kernels reach. Chosen for data-centre GPUs in general, fitted to none. `python -m
# tools.roofline_errors h200` prints their errors on the H200, from 19,000 measured kernels of 50 µs and more. Beside
# each: what the middle 80 % of its kernels reach there. `docs/profiles.md` has the errors.
GEMM_ARITHMETIC = 0.75  # of the dense peak; 0.60 to 0.73 (tiles that are not full count against it as well)
GEMM_MEMORY = 0.82  # of peak bandwidth, streaming weights; 0.70 to 0.84
GROUPED_ARITHMETIC = 0.55  # routed experts; 0.30 to 0.50
GROUPED_MEMORY = 0.70  # 0.45 to 0.82
ATTENTION_ARITHMETIC = 0.60  # prefill; 0.30 to 0.61, the low end for short prompts
ATTENTION_MEMORY = 0.80  # decode; 0.50 to 0.89, the low end for few and short requests
SCAN_ARITHMETIC = 0.30  # recurrent layers over prompts: small products in chunks; chosen, nothing was measured
ELEMENTWISE_MEMORY = 0.75  # 0.85: norms on the H200, which has few of that length
# Start, ramp and drain of one kernel inside a CUDA graph. Chosen: on the H200 an empty kernel takes 1.0 µs, norms,
# rotary embeddings and cache writes of one row 1.2 to 2.6, the smallest matrices 2.5 to 3.
KERNEL_SECONDS = 2.5e-6
# Tiles of cuBLAS and FlashAttention as they are on Hopper; other sizes occur, and a kernel's choice is not public.
TILE_ROWS, TILE_COLUMNS = 64, 128  # of a GEMM's result that one streaming multiprocessor works on at a time
FEWEST_ROWS = 16  # of a tile, where there are no more
QUERY_TILE = 128  # query rows (tokens times heads that share keys) of one attention tile
SPARSE_HEADS = 64  # that kernels of sparse attention are padded to; twice as many on Blackwell, which has 4-bit types
KEY_SPLIT = 1024  # keys from which an attention tile's work is split further; chosen


@dataclass(frozen=True)
class Roofline:
    """Operator times on one kind of GPU, in its usual nodes unless a topology is given."""

    gpu: Gpu
    topology: Topology | None = None

    @property
    def name(self) -> str:
        return "roofline"

    def rows(self, operator: RowOperator, rows: Floats) -> Estimate:
        return Estimate.all_of(self._seconds(operator, rows), ANALYTIC)

    def _seconds(self, operator: RowOperator, rows: Floats) -> Floats:
        if isinstance(operator, Gemm):
            return self._gemm(operator, rows)
        if isinstance(operator, GroupedGemm):
            return self._grouped(operator, rows)
        if isinstance(operator, Collective):
            collectives = Collectives(self.topology or topology_of(self.gpu))
            return collectives.operator(operator, rows).seconds
        return self._elementwise(operator, rows)

    def _gemm(self, gemm: Gemm, rows: Floats) -> Floats:
        how = precision_of(gemm, self.gpu)
        moved = gemm.k * gemm.n * gemm.weight_bytes + rows * (how.row_bytes * gemm.k + 2.0 * gemm.n)
        flops = 2.0 * gemm.k * self._worked_on(rows, gemm.n)
        arithmetic = flops / (self.gpu.peak(gemm.compute) * GEMM_ARITHMETIC * how.arithmetic)
        seconds = self._bound(rows, arithmetic, moved / (self.gpu.memory_bandwidth * GEMM_MEMORY * how.memory))
        return seconds + self._quantizing(rows, gemm) if how.quantizes else seconds

    def _grouped(self, gemm: GroupedGemm, rows: Floats) -> Floats:
        """Experts that no token chose are not read; each of the others gets its share of the rows."""
        visits, how = gemm.visits(rows), precision_of(gemm, self.gpu)
        flops = 2.0 * visits * gemm.k * gemm.n
        weights = gemm.touched(rows) * gemm.k * gemm.n * gemm.weight_bytes
        moved = weights + visits * (how.row_bytes * gemm.k + 2.0 * gemm.n)
        peak = self.gpu.peak(gemm.compute) * GROUPED_ARITHMETIC * how.arithmetic
        seconds = self._bound(rows, flops / peak, moved / (self.gpu.memory_bandwidth * GROUPED_MEMORY * how.memory))
        return seconds + self._quantizing(visits, gemm) if how.quantizes else seconds

    def _quantizing(self, rows: Floats, gemm: Gemm | GroupedGemm) -> Floats:
        """A separate kernel reads rows in 16 bits and writes them in the type of the multiplication."""
        moved = rows * gemm.k * (2.0 + precision_of(gemm, self.gpu).row_bytes)
        return self._bound(rows, np.zeros_like(rows), moved / (self.gpu.memory_bandwidth * ELEMENTWISE_MEMORY))

    def _elementwise(self, operator: Elementwise, rows: Floats) -> Floats:
        moved = rows * operator.bytes
        return self._bound(rows, np.zeros_like(rows), moved / (self.gpu.memory_bandwidth * ELEMENTWISE_MEMORY))

    @staticmethod
    def _bound(rows: Floats, arithmetic: Floats, memory: Floats) -> Floats:
        return np.where(rows > 0, np.maximum(arithmetic, memory) + KERNEL_SECONDS, 0.0)

    def _worked_on(self, rows: Floats, columns: int) -> Floats:
        """Elements of the result that take time: whole waves of tiles, if there is more than one wave."""
        tile = np.clip(np.ceil(rows / FEWEST_ROWS) * FEWEST_ROWS, FEWEST_ROWS, TILE_ROWS)
        tiles = np.ceil(rows / tile) * np.ceil(columns / TILE_COLUMNS)
        waves = np.ceil(tiles / self.gpu.sms)
        whole_waves = waves * self.gpu.sms * tile * TILE_COLUMNS
        return np.where(tiles < self.gpu.sms, rows * columns, whole_waves)

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> _Decodes:
        """Sparse attention reads the best tokens one by one, which costs no more here than reading them in a row."""
        per_key = self._per_key(operator, operator.decode, kv_bytes)
        return _Decodes(Curve((0, 1), (KERNEL_SECONDS, KERNEL_SECONDS + per_key), ANALYTIC))

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> _Prefill:
        """Sparse attention is bound by arithmetic, too: queries near each other read the same tokens from the cache."""
        return _Prefill(
            per_pair=self._arithmetic(operator, operator.prefill),
            per_token=self._read(operator, kv_bytes),
            shape=operator.prefill,
            sms=self.gpu.sms,
            window=operator.window,
            moved_per_pair=self._moved(operator),
        )

    def _per_key(self, operator: AttentionOperator, shape: AttentionShape, kv_bytes: float) -> float:
        """Seconds of one query for one cached token."""
        return max(self._arithmetic(operator, shape), self._read(operator, kv_bytes)) + self._moved(operator)

    def _read(self, operator: AttentionOperator, kv_bytes: float) -> float:
        """Seconds to read one cached token."""
        value = kv_bytes if operator.value_bytes is None else operator.value_bytes
        return operator.kv_elements * value / (self.gpu.memory_bandwidth * ATTENTION_MEMORY)

    def _arithmetic(self, operator: AttentionOperator, shape: AttentionShape) -> float:
        """Seconds of one query and one key, with the heads that kernels of sparse attention are padded to."""
        flops: float = shape.flops_per_pair
        if operator.attention == "sparse":
            whole = SPARSE_HEADS * (2 if "fp4" in self.gpu.flops else 1)
            flops *= -(-shape.heads // whole) * whole / shape.heads
        return flops / (self.gpu.peak(operator.compute) * ATTENTION_ARITHMETIC)

    def _moved(self, operator: AttentionOperator) -> float:
        return operator.pair_bytes / (self.gpu.memory_bandwidth * ELEMENTWISE_MEMORY)

    def decode_recurrence(self, operator: Recurrence) -> RecurrenceDecodes:
        return RecurrenceDecodes(operator, self._scan_rates(operator))

    def prefill_recurrence(self, operator: Recurrence) -> RecurrencePrefill:
        return RecurrencePrefill(operator, self._scan_rates(operator))

    def _scan_rates(self, operator: Recurrence) -> ScanRates:
        return ScanRates(
            flops=self.gpu.peak(operator.compute) * SCAN_ARITHMETIC,
            bytes=self.gpu.memory_bandwidth * ELEMENTWISE_MEMORY,
            sms=self.gpu.sms,
            kernel_seconds=KERNEL_SECONDS,
        )


@dataclass(frozen=True)
class _Decodes:
    """Cached tokens at the rate of memory or arithmetic, for any number of requests."""

    line: Curve

    def curve(self, requests: int) -> Curve:
        return self.line


@dataclass(frozen=True)
class _Prefill:
    """Pairs of query and key tokens at the arithmetic rate, but at least the cache read once.

    A step with fewer tiles of work than the GPU has multiprocessors runs that much slower.
    """

    per_pair: float
    per_token: float
    shape: AttentionShape
    sms: int
    window: int | None
    moved_per_pair: float = 0.0  # seconds of further kernels, without a window
    provenance: int = ANALYTIC

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        pairs = keys = 0
        tiles = 0.0
        sharing = self.shape.heads // self.shape.kv_heads
        for tokens, before in chunks:
            seen = before if self.window is None else min(before, self.window)
            own = tokens * seen + tokens * (tokens + 1) // 2
            if self.window is not None:
                own = min(own, tokens * self.window)
            pairs += own
            keys += seen + tokens
            rows = max(1.0, tokens * sharing / QUERY_TILE)
            tiles += self.shape.kv_heads * rows * max(1.0, own / tokens / KEY_SPLIT)
        busy = min(1.0, tiles / self.sms)
        seconds = KERNEL_SECONDS + max(pairs * self.per_pair / busy, keys * self.per_token)
        return seconds + pairs * self.moved_per_pair if self.moved_per_pair else seconds

    def together(self, chunks: Sequence[tuple[int, int]], decodes: Decodes) -> None:
        return None
