"""Operator times of one GPU from the profile of a sibling: the same multiprocessors, but other memory or clocks.

A kernel moves as many bytes and does as many operations on both GPUs. What bounds it at the peak rates takes longer or
shorter by what these differ by, and all else (starts, latencies, waves of tiles) takes as long. Between H200 and H100
this is what NVIDIA's tables show: where a kernel uses 44, 71 or 91 % of the H200's bandwidth, those of the H100 have it
1.19, 1.30 and 1.40 times as long. All answers are called *transferred*: `python -m tools.transfer_errors h100` compares
them with kernels that were measured on the GPU itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from steelyard.cost.source import (
    TRANSFERRED,
    CostSource,
    Curve,
    DecodeAttention,
    Decodes,
    Estimate,
    Floats,
    PrefillAttention,
    RowOperator,
)
from steelyard.hardware import Gpu
from steelyard.model import AttentionOperator, Collective, Elementwise, GroupedGemm

SIBLINGS = {"h100": "h200", "h800": "h200", "h20": "h200", "gh200": "h200"}
"""By GPU, the one whose profile it borrows: all are Hopper (compute capability 9.0)."""
_VALUE_BYTES = 2.0  # of an activation
_WHOLE_LAYER = 1.5  # of experts' gate and up matrices, which profiles time together with the down matrix


@dataclass(frozen=True)
class Transferred:
    """A sibling's source, carried to a GPU."""

    gpu: Gpu
    measured: CostSource
    donor: Gpu

    @property
    def name(self) -> str:
        return f"{self.measured.name}, transferred"

    def rows(self, operator: RowOperator, rows: Floats) -> Estimate | None:
        if isinstance(operator, Collective):
            return None  # links differ more than chips do
        found = self.measured.rows(operator, rows)
        if found is None:
            return None
        more = _at_peak(operator, rows, self.gpu) - _at_peak(operator, rows, self.donor)
        return Estimate.all_of(np.where(found.seconds > 0, found.seconds + more, 0.0), TRANSFERRED)

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> DecodeAttention | None:
        found = self.measured.decode_attention(operator, kv_bytes)
        return None if found is None else TransferredDecodes(found, self._attention(operator, kv_bytes).per_cached)

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> PrefillAttention | None:
        found = self.measured.prefill_attention(operator, kv_bytes)
        return None if found is None else TransferredPrefill(found, self._attention(operator, kv_bytes))

    def _attention(self, operator: AttentionOperator, kv_bytes: float) -> AttentionChange:
        here, there = (AttentionPeaks.of(operator, kv_bytes, gpu) for gpu in (self.gpu, self.donor))
        return AttentionChange(here, there, operator.window)


@dataclass(frozen=True)
class AttentionPeaks:
    """Seconds at a GPU's peak rates."""

    pair: float  # of a query and a key of a prompt
    cached: float  # of a cached token that a prompt sees
    decode: float  # of a cached token that a decode sees

    @classmethod
    def of(cls, operator: AttentionOperator, kv_bytes: float, gpu: Gpu) -> AttentionPeaks:
        """Those of an operator."""
        peak, read = gpu.peak(operator.compute), operator.kv_elements * kv_bytes / gpu.memory_bandwidth
        return cls(operator.prefill.flops_per_pair / peak, read, max(read, operator.decode.flops_per_pair / peak))


@dataclass(frozen=True)
class AttentionChange:
    """What attention takes longer on one GPU than on another."""

    here: AttentionPeaks
    there: AttentionPeaks
    window: int | None

    @property
    def per_cached(self) -> float:
        """For each cached token that decodes see."""
        return self.here.decode - self.there.decode

    def of_prompts(self, chunks: Sequence[tuple[int, int]]) -> float:
        """For chunks of (new tokens, cached tokens before them)."""
        pairs = keys = 0.0
        for tokens, before in chunks:
            seen = before if self.window is None else min(before, self.window)
            own = tokens * seen + tokens * (tokens + 1) / 2
            pairs += own if self.window is None else min(own, float(tokens * self.window))
            keys += seen + tokens
        here, there = (max(each.pair * pairs, each.cached * keys) for each in (self.here, self.there))
        return here - there


@dataclass(frozen=True)
class TransferredDecodes:
    """Decode attention, carried."""

    measured: DecodeAttention
    per_cached: float  # further seconds
    _curves: dict[int, Curve] = field(default_factory=dict)

    def curve(self, requests: int) -> Curve:
        if requests not in self._curves:
            found = self.measured.curve(requests)
            seconds = np.array(found.seconds) + self.per_cached * np.array(found.kv)
            self._curves[requests] = Curve(found.kv, tuple(seconds.tolist()), TRANSFERRED, found.skew)
        return self._curves[requests]


@dataclass(frozen=True)
class TransferredPrefill:
    """Prefill attention, carried, alone or with decodes in the same kernel."""

    measured: PrefillAttention
    change: AttentionChange
    provenance: int = TRANSFERRED

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        return self.measured.seconds(chunks) + self.change.of_prompts(chunks)

    def together(self, chunks: Sequence[tuple[int, int]], decodes: Decodes) -> float | None:
        found = self.measured.together(chunks, decodes)
        if found is None:
            return None
        window = self.change.window
        cached = decodes.cached if window is None else min(decodes.cached, decodes.requests * window)
        return found + self.change.of_prompts(chunks) + self.change.per_cached * cached


def _at_peak(operator: RowOperator, rows: Floats, gpu: Gpu) -> Floats:
    """Seconds of an operator's bytes or operations at the peak rates, whichever take longer."""
    assert not isinstance(operator, Collective)
    if isinstance(operator, Elementwise):
        return rows * operator.bytes / gpu.memory_bandwidth
    elements, passed = float(operator.k * operator.n), _VALUE_BYTES * (operator.k + operator.n)
    multiplied, read, visits = rows, np.ones_like(rows), rows
    if isinstance(operator, GroupedGemm):
        visits = operator.visits(rows)
        multiplied, read = _WHOLE_LAYER * visits, _WHOLE_LAYER * operator.touched(rows)
    moved = read * elements * operator.weight_bytes + visits * passed
    return np.maximum(2.0 * multiplied * elements / gpu.peak(operator.compute), moved / gpu.memory_bandwidth)
