"""Seconds of one layer's operators by tokens, forward and backward, from the cost sources.

A matrix multiplication's backward pass is two: gradients of its input (the transposed matrix) and of its weights (whose
inner dimension is the number of tokens). Both are queried in their own shapes. For experts, each is assumed to take as
long as the forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from steelyard.cost.source import PROVENANCES, FirstOf, Floats
from steelyard.model import (
    AttentionOperator,
    Collective,
    Elementwise,
    Gemm,
    GroupedGemm,
    Layer,
    ModelSpec,
    MoeFfn,
    Operator,
    Recurrence,
    Routing,
    head_operators,
    operators,
)
from steelyard.posttrain.training.efficiency import (
    ELEMENTWISE_BACKWARD,
    LOSS_BYTES,
)
from steelyard.posttrain.training.layout import TrainLayout

ON_TOKEN_PARTS = ("input_norm", "post_norm", "pre_ffn_norm", "post_attention_norm", "post_ffn_norm", "final_norm")
"""What sequence parallelism runs on a part of the tokens: everything between blocks is split over ranks."""
_ONLY_SERVED = ("kv_write", "experts_elsewhere", "sampler")
_AT_ONCE = 65536  # tokens of sequences that attention is timed for


@dataclass(frozen=True)
class Passes:
    """Seconds of an operator list for each number of tokens.

    ``light`` is the part of ``forward`` that is not matrix multiplications: what selective recomputation runs again.
    """

    forward: Floats
    backward: Floats
    light: Floats


@dataclass(frozen=True)
class AttentionTime:
    """Attention of one layer over whole sequences: seconds per token by length, in a micro-batch that fills the GPU."""

    length: Floats
    per_token: Floats

    def seconds(self, lengths: Floats) -> Floats:
        """Forward seconds of each sequence. Beyond the last length the last slope continues."""
        x, y = self.length, self.per_token
        slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
        rate = np.where(lengths > x[-1], y[-1] + (lengths - x[-1]) * slope, np.interp(lengths, x, y))
        return lengths * rate


@dataclass
class Answers:
    """A cache of operator times of one model on one kind of GPU, with their seconds by provenance; for attention, the
    provenance and the seconds per token at a usual length. Most layouts ask for the same ones."""

    passes: dict[object, tuple[Passes, Floats]] = field(default_factory=dict)
    attention: dict[object, tuple[AttentionTime, int, float]] = field(default_factory=dict)


@dataclass
class Kernels:
    """Queries the sources, and adds up seconds by provenance."""

    source: FirstOf
    layout: TrainLayout
    tokens: Floats  # of one GPU
    kept_up: float  # share of the sources' rates that matrices and attention reach
    answers: Answers = field(default_factory=Answers)
    by_provenance: Floats = field(default_factory=lambda: np.zeros(len(PROVENANCES)))

    def passes(self, ops: tuple[Operator, ...]) -> Passes:
        """Forward and backward of all row operators of a list."""
        key = ops, self.layout.tp, self.layout.as_served.dp, *self._asked
        if key not in self.answers.passes:
            self.answers.passes[key] = self._passes(ops)
        found, shares = self.answers.passes[key]
        self.by_provenance += shares
        return found

    def attention(self, op: AttentionOperator, dtype_bytes: int) -> AttentionTime:
        """Attention of one layer from the source's prefill times."""
        key = op, dtype_bytes, self.kept_up
        if key not in self.answers.attention:
            self.answers.attention[key] = self._attention(op, dtype_bytes)
        found, provenance, usual = self.answers.attention[key]
        self.by_provenance[provenance] += usual * float(self.tokens[-1])
        return found

    @property
    def _asked(self) -> tuple[bytes, float]:
        return self.tokens.tobytes(), self.kept_up

    def _passes(self, ops: tuple[Operator, ...]) -> tuple[Passes, Floats]:
        forward, backward, light = np.zeros((3, len(self.tokens)))
        shares = np.zeros_like(self.by_provenance)
        for op in ops:
            if isinstance(op, AttentionOperator | Recurrence | Collective):
                continue
            there = self._seconds(op, self._rows(op), shares)
            forward += there
            if isinstance(op, Gemm):
                backward += self._gradients(op, shares)
            elif isinstance(op, GroupedGemm):
                backward += 2.0 * there
            else:
                light += there
                backward += ELEMENTWISE_BACKWARD * there
        rising = np.maximum.accumulate
        return Passes(*(rising(each) for each in (forward, backward, light))), shares

    def _attention(self, op: AttentionOperator, dtype_bytes: int) -> tuple[AttentionTime, int, float]:
        prefill = self.source.prefill_attention(op, dtype_bytes)
        lengths = np.array([2.0**i for i in range(5, 18)])
        per_token = []
        for length in lengths.astype(int).tolist():
            count = min(64, max(1, _AT_ONCE // length))
            per_token.append(prefill.seconds([(length, 0)] * count) / (self.kept_up * count * length))
        return AttentionTime(lengths, np.maximum.accumulate(per_token)), prefill.provenance, per_token[-4]

    def _rows(self, op: Operator) -> Floats:
        if isinstance(op, GroupedGemm | Elementwise) and op.per == "pooled":
            return self.tokens * self.layout.as_served.dp
        if op.name in ON_TOKEN_PARTS:
            return self.tokens / self.layout.tp
        return self.tokens

    def _seconds(self, op: Gemm | GroupedGemm | Elementwise, rows: Floats, shares: Floats) -> Floats:
        found = self.source.rows(op, rows)
        share = 1.0 if isinstance(op, Elementwise) else self.kept_up
        seconds: Floats = found.seconds / share
        shares[found.provenance[-1]] += float(seconds[-1])
        return seconds

    def _gradients(self, op: Gemm, shares: Floats) -> Floats:
        rows = self._rows(op)
        inputs = self._seconds(replace(op, name=f"{op.name}_dgrad", k=op.n, n=op.k), rows, shares)
        weights = np.zeros_like(rows)
        for i, count in enumerate(rows.tolist()):
            if count > 0:
                turned = replace(op, name=f"{op.name}_wgrad", k=round(count))
                weights[i] = self._seconds(turned, np.array([float(op.k)]), shares)[0]
        return inputs + weights


def layer_operators(model: ModelSpec, layer: Layer, layout: TrainLayout, routing: Routing) -> tuple[Operator, ...]:
    """The operators of a layer's forward pass on one GPU in training.

    Each rank copies its tokens once for every expert they visit, and adds up what comes back.
    """
    found: list[Operator] = []
    for op in operators(model, layer, layout.as_served, routing):
        if isinstance(op, Elementwise) and isinstance(layer.ffn, MoeFfn) and op.name == "experts_sum":
            own = layout.tp if layout.ep > 1 else 1
            moved = (layer.ffn.top_k + 1) * model.hidden * model.dtype_bytes // own
            found += [Elementwise("experts_sum", moved), Elementwise("experts_permute", moved)]
        elif op.name not in _ONLY_SERVED:
            found.append(op)
    return tuple(found)


def first_operators(model: ModelSpec) -> tuple[Operator, ...]:
    """The operators before the layers."""
    return tuple(op for op in head_operators(model) if op.name == "embedding")


def last_operators(model: ModelSpec, layout: TrainLayout) -> tuple[Operator, ...]:
    """The operators after the layers: the output head for every token, and log-probabilities of its logits."""
    found: list[Operator] = []
    for op in head_operators(model, layout.tp):
        if op.name not in (*_ONLY_SERVED, "embedding") and not isinstance(
            op, Collective | AttentionOperator | Recurrence
        ):
            found.append(replace(op, per="token"))
        if isinstance(op, Gemm):
            found.append(Elementwise("loss", LOSS_BYTES * op.n))
    return tuple(found)
