"""Useful work of a run, for the shares of peak arithmetic (MFU) and bandwidth (MBU) it reached."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.compiled import Stretches, operator_is_per_sequence
from steelyard.hardware import Gpu
from steelyard.model import (
    AttentionOperator,
    Gemm,
    GroupedGemm,
    Layout,
    ModelSpec,
    Recurrence,
    as_layout,
    head_operators,
    kv_dtype_bytes,
    operators,
)

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class AttentionWork:
    """One kind of layer: seconds at peak per pair of tokens, bytes per cached token, and the window."""

    prefill_pair: float
    decode_pair: float
    kv_bytes: float
    window: int | None


@dataclass(frozen=True)
class StateWork:
    """One kind of recurrent layer: seconds at peak per token, and bytes of a request's state."""

    token: float
    state_bytes: float


@dataclass(frozen=True)
class Work:
    """The minimum cost of a model on a GPU: seconds at peak arithmetic, bytes that must be read."""

    per_token: float
    per_row: float  # of the output head: one per request and step
    weight_bytes: float  # read once per step, whatever its size
    experts: tuple[tuple[float, float], ...]  # (bytes of all experts, chance that a step's token chooses one)
    attention: tuple[AttentionWork, ...]
    ranks: int = 1  # data-parallel ones, whose tokens meet at the experts
    recurrence: tuple[StateWork, ...] = ()

    def seconds_at_peak(self, done: Stretches) -> float:
        """GPU seconds the arithmetic would take at the peak rate of each data type."""
        tokens = (done.decodes + done.prefill_tokens) * done.steps
        rows = (done.decodes + done.prefill_requests) * done.steps
        total = float(tokens.sum()) * self.per_token + float(rows.sum()) * self.per_row
        for part in self.attention:
            pairs = _seen(done.prefill_pairs, done.prefill_tokens * done.steps, part.window)
            keys = _seen(done.decode_keys, done.decodes * done.steps, part.window)
            total += float(pairs.sum()) * part.prefill_pair + float(keys.sum()) * part.decode_pair
        for state in self.recurrence:
            total += float(tokens.sum()) * state.token
        return total

    def bytes(self, done: Stretches) -> float:
        """Weights and cache that the steps had to read, and states, which they wrote as well."""
        total = float(done.steps.sum()) * self.weight_bytes
        for size, chance in self.experts:
            touched = 1.0 - (1.0 - chance) ** (self.ranks * (done.decodes + done.prefill_tokens))
            total += size * float((touched * done.steps).sum())
        for part in self.attention:
            keys = _seen(done.decode_keys, done.decodes * done.steps, part.window)
            total += float(keys.sum()) * part.kv_bytes
        rows = (done.decodes + done.prefill_requests) * done.steps
        for state in self.recurrence:
            total += float(rows.sum()) * 2 * state.state_bytes
        return total


def _seen(pairs: Ints, queries: Ints, window: int | None) -> Ints:
    """Pairs inside the window: no query sees more keys than that."""
    return pairs if window is None else np.minimum(pairs, queries * window)


def work_of(model: ModelSpec, gpu: Gpu, tp: int | Layout, kv_cache_dtype: str) -> Work:
    """The work coefficients of a model, per GPU of an engine: the mean over a pipeline's stages and over expert ranks.

    Other data-parallel ranks are taken to be as busy as the one whose steps are counted.
    """
    layout = as_layout(tp)
    token = row = weights = 0.0
    experts: list[tuple[float, float]] = []
    attention: list[AttentionWork] = []
    recurrence: list[StateWork] = []
    kv_bytes = kv_dtype_bytes(model, kv_cache_dtype)
    for layer in model.layers:
        for operator in operators(model, layer, tp):
            if isinstance(operator, Gemm):
                token += layer.count * _gemm_seconds(operator, gpu)
                weights += layer.count * operator.k * operator.n * operator.weight_bytes
            elif isinstance(operator, GroupedGemm):
                token += layer.count * layout.dp * operator.choices * _gemm_seconds(operator, gpu)
                size = layer.count * operator.experts * operator.k * operator.n * operator.weight_bytes
                experts.append((size / layout.pp, operator.choices / operator.experts))
            elif isinstance(operator, AttentionOperator):
                attention.append(_attention_work(operator, gpu, layer.count / layout.pp, kv_bytes))
            elif isinstance(operator, Recurrence):
                recurrence.append(_state_work(operator, gpu, layer.count / layout.pp))
    for operator in head_operators(model, tp):
        if isinstance(operator, Gemm):
            weights += operator.k * operator.n * operator.weight_bytes
            if operator_is_per_sequence(operator):
                row += _gemm_seconds(operator, gpu)
            else:
                token += _gemm_seconds(operator, gpu)
    pp = layout.pp
    return Work(token / pp, row / pp, weights / pp, tuple(experts), tuple(attention), layout.dp, tuple(recurrence))


def _gemm_seconds(gemm: Gemm | GroupedGemm, gpu: Gpu) -> float:
    return 2.0 * gemm.k * gemm.n / gpu.peak(gemm.compute)


def _attention_work(operator: AttentionOperator, gpu: Gpu, layers: float, kv_bytes: float) -> AttentionWork:
    peak = gpu.peak(operator.compute)
    ranks = 1 if operator.context_parallel is None else operator.context_parallel.ranks
    return AttentionWork(
        prefill_pair=layers * operator.prefill.flops_per_pair / peak,
        decode_pair=layers * operator.decode.flops_per_pair / peak / ranks,
        kv_bytes=layers * operator.kv_elements * (operator.value_bytes or kv_bytes) / ranks,
        window=operator.window,
    )


def _state_work(operator: Recurrence, gpu: Gpu, layers: float) -> StateWork:
    """A token updates each state by one product with its values, and reads it by another; a gated delta net reads it
    once more for what to replace."""
    products = 3 if operator.recurrence == "gated_delta" else 2
    flops = 2.0 * products * operator.heads * operator.head_dim * operator.state_dim
    return StateWork(layers * flops / gpu.peak(operator.compute), layers * operator.state_bytes)
