"""The measured source: operator times from a profile of the GPU.

Each kind of operator has a module that interpolates its times. Operators that the profile lacks come from the next
source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from steelyard.cost.bundle import Bundle
from steelyard.cost.measured.attention import MeasuredAttention, MeasuredDecodes
from steelyard.cost.measured.elementwise import Small
from steelyard.cost.measured.experts import Experts
from steelyard.cost.measured.layer_overhead import layer_overhead
from steelyard.cost.measured.matrices import Matrices
from steelyard.cost.measured.prefill import MeasuredPrefill
from steelyard.cost.source import INTERPOLATED, Estimate, Floats, RowOperator
from steelyard.hardware import Gpu
from steelyard.model import AttentionOperator, Elementwise, Gemm, GroupedGemm

__all__ = ["MeasuredSource"]

_KNOWN_ATTENTION = ("gqa", "mfa")
_IN_THE_EXPERTS = ("experts_down", "experts_act", "experts_sum")  # measured together with experts_gate_up


@dataclass(frozen=True)
class MeasuredSource:
    """Operator times from a bundle: bf16, 8-bit matrices and caches; not other types, latent attention, collectives."""

    gpu: Gpu
    bundle: Bundle

    @property
    def name(self) -> str:
        return f"profile of {self.bundle.about['gpu']}"

    def lacks(self) -> Iterator[tuple[str, str]]:
        """Families that have points, but too few of some kind to predict any other: what they lack."""
        for family, lack in (
            ("gemm", self.matrices.lack),
            ("gemm_fp8", self.matrices_fp8.lack),
            ("moe", self.experts.lack),
            ("attention", self.attention.lack),
        ):
            if lack is not None:
                yield family, lack

    def rows(self, operator: RowOperator, rows: Floats) -> Estimate | None:
        if isinstance(operator, GroupedGemm) and not self._knows_experts(operator):
            return None
        if operator.name in _IN_THE_EXPERTS:
            return Estimate.all_of(np.zeros_like(rows), INTERPOLATED)
        alone = self._alone(operator, rows)
        if alone is None:
            return None
        return alone._replace(seconds=np.where(rows > 0, alone.seconds + self._layer_overhead, 0.0))

    def _knows_experts(self, gemm: GroupedGemm) -> bool:
        return gemm.weight_bytes == 2 and gemm.gated and bool(self.experts.points)

    def _alone(self, operator: RowOperator, rows: Floats) -> Estimate | None:
        if isinstance(operator, Gemm):
            return self._gemm(operator, rows)
        if isinstance(operator, GroupedGemm):
            shape = (operator.experts, operator.choices, operator.k, operator.n // 2)
            return self.experts.seconds(shape, rows, operator.load)
        if isinstance(operator, Elementwise):
            return self._small.seconds(operator, rows)
        return None

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> MeasuredDecodes | None:
        if operator.attention not in _KNOWN_ATTENTION or not self.attention.points:
            return None
        return self.attention.decodes(operator, kv_bytes, self._layer_overhead)

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> MeasuredPrefill | None:
        if operator.attention not in _KNOWN_ATTENTION or not self.attention.points:
            return None
        return self.attention.prefill(operator, kv_bytes)

    def _gemm(self, gemm: Gemm, rows: Floats) -> Estimate | None:
        """8-bit rows are quantised first, by a separate kernel.

        Points are measured in short runs. A GPU kept busy with large matrices reaches its power limit and lowers its
        clocks, so times are capped at the sustained rate, if the profile has it.
        """
        if gemm.weight_bytes == 2 and self.matrices.points:
            found = self.matrices.seconds(gemm.n, gemm.k, rows)
            return found._replace(seconds=np.maximum(found.seconds, self.at_kept_up(gemm, rows)))
        quantized = self._small.of("quantize", 2 * gemm.k, rows)
        if gemm.weight_bytes == 1 and gemm.compute == "fp8" and quantized is not None and self.matrices_fp8.points:
            found = self.matrices_fp8.seconds(gemm.n, gemm.k, rows)
            return Estimate(found.seconds + quantized.seconds, found.provenance)
        return None

    def at_kept_up(self, gemm: Gemm, rows: Floats) -> Floats:
        """Seconds at the rate of large matrices that the GPU keeps up, if the profile has it."""
        kept_up = self.bundle.about.get("kept_up_tflops")
        return np.zeros_like(rows) if kept_up is None else 2e-12 / kept_up * gemm.n * gemm.k * rows

    @cached_property
    def matrices(self) -> Matrices:
        """16-bit matrix multiplications."""
        return Matrices(self.bundle.families.get("gemm", []), self.gpu, 2.0, "bf16")

    @cached_property
    def matrices_fp8(self) -> Matrices:
        """8-bit ones."""
        return Matrices(self.bundle.families.get("gemm_fp8", []), self.gpu, 1.0, "fp8")

    @cached_property
    def experts(self) -> Experts:
        """Routed experts."""
        held_out = self.bundle.held_out.get("moe", [])
        return Experts(self.bundle.families.get("moe", []), self.gpu, held_out)

    @cached_property
    def attention(self) -> MeasuredAttention:
        """Attention."""
        return MeasuredAttention(self.bundle.families.get("attention", []), self.gpu)

    @cached_property
    def _small(self) -> Small:
        return Small(self.bundle.families)

    @cached_property
    def _layer_overhead(self) -> float:
        return layer_overhead(self.bundle.families.get("layer", []))
