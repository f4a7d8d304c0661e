"""Routed experts by DeepGEMM's grouped kernels, as vLLM calls them (`engine.moe_backend: deep_gemm`).

The kernel works on blocks of 128 rows, each of one expert. The host does not know how many rows each expert gets, so
vLLM makes room for the worst case: 127 further rows for every expert. Blocks that nothing was written to skip their
arithmetic, but they load a tile of the activations and of some expert's weights, and write a result, like all others.
A decode of a few tokens therefore takes as long as one that touches every expert.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.cost.source import EXTRAPOLATED, CostSource, Estimate, FirstOf, Floats, RowOperator
from steelyard.errors import UserError
from steelyard.model import AttentionOperator, Elementwise, Gemm, GroupedGemm, ModelSpec, MoeFfn

_BLOCK = 128  # rows
_IN_THE_LAYER = ("experts_down", "experts_act", "experts_sum")  # counted with experts_gate_up
_WIDTHS = 16_384, 65_536  # columns; the second is the widest in NVIDIA's tables
_SIZE = 2  # bytes of an activation that is not quantised


def padded_rows(tokens: Floats, top_k: int, experts: int) -> Floats:
    """Rows that the kernel gets for each number of tokens."""
    return np.ceil((tokens * top_k + experts * (_BLOCK - 1)) / _BLOCK) * _BLOCK


@dataclass(frozen=True)
class DeepGemmExperts:
    """Experts in blocks of padded rows; every other operator is another source's."""

    others: FirstOf

    @property
    def name(self) -> str:
        return f"DeepGEMM's padded rows by {self.others.name}"

    def rows(self, operator: RowOperator, rows: Floats) -> Estimate | None:
        if operator.name in _IN_THE_LAYER:
            return Estimate.all_of(np.zeros_like(rows), EXTRAPOLATED)
        if not isinstance(operator, GroupedGemm):
            return None
        padded = padded_rows(rows, operator.top_k, operator.experts)
        seconds = self._matrix(operator, operator.k, operator.n, padded)
        seconds = seconds + self._matrix(operator, operator.n // 2, operator.k, padded)
        loaded = Elementwise("experts_loaded", operator.k, operator.per)  # one byte of each activation
        around = Elementwise("experts_around", round(_around(operator)), operator.per)
        seconds = seconds + self.others.rows(loaded, padded).seconds + self.others.rows(around, rows).seconds
        return Estimate.all_of(np.where(rows > 0, seconds, 0.0), EXTRAPOLATED)

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> None:
        return None

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> None:
        return None

    def _matrix(self, gemm: GroupedGemm, k: int, n: int, padded: Floats) -> Floats:
        """As one matrix with the columns of all experts side by side, which moves as much and multiplies as much.

        It is wider than any that was measured; from some width on, time grows in proportion to the columns.
        """
        most = float(padded.max()) / (_BLOCK * gemm.experts)
        blocks = 2.0 ** np.arange(np.ceil(np.log2(max(most, 1.0))) + 1)  # of each expert

        def timed(columns: int) -> Floats:
            wide = Gemm(f"{gemm.name}_padded", k, columns, gemm.weight_bytes, gemm.compute, gemm.per)
            return self.others.rows(wide, blocks * _BLOCK).seconds

        narrow, wide = (timed(columns) for columns in _WIDTHS)
        per_column = np.maximum(wide - narrow, 0.0) / (_WIDTHS[1] - _WIDTHS[0])
        seconds = wide + per_column * (n * gemm.experts - _WIDTHS[1])
        return np.interp(padded / (_BLOCK * gemm.experts), blocks, seconds)


def _around(gate_up: GroupedGemm) -> float:
    """Bytes per token around the matrices: it is copied to the rows of its experts in one byte, their results are added
    up, and between the matrices rows are activated (two read, one written) and quantised. Rows without a token are not
    counted here: few enough of them are written at a time to be read back from the L2 cache.
    """
    hidden, width, choices = gate_up.k, gate_up.n / 2, gate_up.choices
    copied, added = hidden * (1 + choices), _SIZE * hidden * (choices + 1)
    return copied + added + choices * width * (3 * _SIZE + _SIZE + 1)


def check_deep_gemm(model: ModelSpec) -> None:
    """Refuse models whose experts DeepGEMM does not multiply, as vLLM does."""
    stored = model.quantization
    routed = any(isinstance(layer.ffn, MoeFfn) for layer in model.layers)
    if not routed or stored is None or stored.method != "fp8" or stored.block != _BLOCK:
        raise UserError(
            f"engine.moe_backend: deep_gemm is for routed experts with fp8 weights in blocks of {_BLOCK}, which "
            f"{model.name} has not; leave it out"
        )


def with_backend(sources: tuple[CostSource, ...], backend: str) -> tuple[CostSource, ...]:
    """The sources, with the experts of a backend before them."""
    return (DeepGemmExperts(FirstOf(sources)), *sources) if backend == "deep_gemm" else sources
