"""Useful work of a run, for the shares of peak arithmetic (MFU) and bandwidth (MBU) it reached."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.compiled import operator_is_per_sequence
from steelyard.model import (
    AttentionOperator,
    Gemm,
    GroupedGemm,
    ModelSpec,
    head_operators,
    kv_dtype_bytes,
    operators,
)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Work:
    """Per GPU: what tokens, output rows and pairs of attending tokens cost in arithmetic and in bytes moved."""

    flops_per_token: float
    flops_per_row: float
    flops_per_prefill_pair: float
    flops_per_decode_pair: float
    weight_bytes: float  # read once per step, whatever its size
    experts: tuple[tuple[float, int, int], ...]  # (bytes of all experts, experts, chosen per token)
    kv_bytes: float  # per cached token read

    def flops(self, tokens: Ints, rows: Ints, prefill_pairs: Ints, decode_pairs: Ints) -> float:
        """Arithmetic of many steps, given per-stretch totals."""
        return float(
            tokens.sum() * self.flops_per_token
            + rows.sum() * self.flops_per_row
            + prefill_pairs.sum() * self.flops_per_prefill_pair
            + decode_pairs.sum() * self.flops_per_decode_pair
        )

    def bytes(self, steps: Ints, tokens_per_step: Ints, kv_tokens: Ints) -> float:
        """Weights and cache that many steps have to read."""
        total = float(steps.sum()) * self.weight_bytes + float(kv_tokens.sum()) * self.kv_bytes
        for size, experts, chosen in self.experts:
            touched = 1.0 - (1.0 - chosen / experts) ** tokens_per_step
            total += size * float((touched * steps).sum())
        return total


def work_of(model: ModelSpec, tp: int, kv_cache_dtype: str) -> Work:
    """The work coefficients of a model, per GPU of a tensor-parallel group."""
    token = row = prefill = decode = weights = kv = 0.0
    experts: list[tuple[float, int, int]] = []
    kv_bytes = kv_dtype_bytes(model, kv_cache_dtype)
    for layer in model.layers:
        for operator in operators(model, layer, tp):
            if isinstance(operator, Gemm):
                token += layer.count * 2.0 * operator.k * operator.n
                weights += layer.count * operator.k * operator.n * operator.weight_bytes
            elif isinstance(operator, GroupedGemm):
                token += layer.count * 2.0 * operator.top_k * operator.k * operator.n
                size = layer.count * operator.experts * operator.k * operator.n * operator.weight_bytes
                experts.append((size, operator.experts, operator.top_k))
            elif isinstance(operator, AttentionOperator):
                prefill += layer.count * operator.prefill.flops_per_pair
                decode += layer.count * operator.decode.flops_per_pair
                kv += layer.count * operator.kv_elements * kv_bytes
    for operator in head_operators(model, tp):
        if isinstance(operator, Gemm):
            flops = 2.0 * operator.k * operator.n
            weights += operator.k * operator.n * operator.weight_bytes
            if operator_is_per_sequence(operator):
                row += flops
            else:
                token += flops
    return Work(token, row, prefill, decode, weights, tuple(experts), kv)
