"""Routed experts by one named kernel, from its rows of NVIDIA's tables (`engine.moe_backend: marlin`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from steelyard.cost.silicon.gemm import dtype_of
from steelyard.cost.silicon.source import IN_THE_EXPERTS, Silicon
from steelyard.cost.source import EXTRAPOLATED, Estimate, Floats, RowOperator
from steelyard.errors import UserError
from steelyard.model import AttentionOperator, GroupedGemm, Layout, ModelSpec, Routing, operators

_FOUR_BITS = "int4_wo"  # the tables' name for 4-bit weights with 16-bit arithmetic
_MXFP4_BYTES = 0.5 + 1 / 32  # of a weight with its scale
# vLLM fills mxfp4 experts up to these multiples for Marlin: inputs of the layer, and width of an expert on one GPU.
_HIDDEN, _WIDTH = 256, 128


@dataclass(frozen=True)
class KernelExperts:
    """The whole layer as one kernel was timed; every other operator is another source's."""

    tables: Silicon  # with the kernel's name

    @property
    def name(self) -> str:
        return f"{self.tables.experts_kernel}'s rows of {self.tables.name}"

    def rows(self, operator: RowOperator, rows: Floats) -> Estimate | None:
        if operator.name in IN_THE_EXPERTS:
            return Estimate.all_of(np.zeros_like(rows), EXTRAPOLATED)
        if not isinstance(operator, GroupedGemm) or dtype_of(operator) != _FOUR_BITS:
            return None
        found = self.tables.rows(_padded(operator), rows)
        if found is None:
            kernel, gpu = self.tables.experts_kernel, self.tables.gpu.name
            raise UserError(f"engine.moe_backend: {kernel} was not timed on {gpu}; leave it out")
        return found

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> None:
        return None

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> None:
        return None


def _padded(gemm: GroupedGemm) -> GroupedGemm:
    """The matrices as they are multiplied."""
    if gemm.weight_bytes != _MXFP4_BYTES:
        return gemm
    width = _WIDTH * math.ceil(gemm.n / 2 / _WIDTH)
    return replace(gemm, k=_HIDDEN * math.ceil(gemm.k / _HIDDEN), n=2 * width)


def check_marlin(model: ModelSpec, layout: Layout) -> None:
    """Refuse models and layouts whose experts were not timed with Marlin: it is for 4-bit weights, and the tables have
    it without expert parallelism."""
    found = [each for layer in model.layers for each in operators(model, layer, layout, Routing())]
    experts = [each for each in found if isinstance(each, GroupedGemm)]
    if not experts or any(dtype_of(each) != _FOUR_BITS for each in experts):
        raise UserError(
            f"engine.moe_backend: marlin is for routed experts with 4-bit weights and 16-bit arithmetic, which "
            f"{model.name} has not; leave it out"
        )
    if layout.expert_parallel:
        raise UserError("engine.moe_backend: marlin is not simulated with expert parallelism; leave it out")
