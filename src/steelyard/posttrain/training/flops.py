"""Useful arithmetic of a training step, for the share of the peak it reaches (MFU).

Only what the model needs counts: matrices, and attention over the tokens before each one. Recomputation does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.cost.source import Floats
from steelyard.model import AttentionOperator, Gemm, GroupedGemm, ModelSpec, head_operators, operators


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of a forward pass: per token, and per pair of tokens by attention window."""

    per_token: float
    per_pair: tuple[tuple[int | None, float], ...]

    def forward(self, lengths: Floats) -> float:
        """Operations of a pass over sequences of these lengths."""
        total = self.per_token * float(lengths.sum())
        return total + sum(each * float(_pairs(lengths, window).sum()) for window, each in self.per_pair)

    @property
    def quadratic(self) -> float:
        """The quadratic part of a sequence's work, relative to the linear part of one token."""
        return sum(each for window, each in self.per_pair if window is None) / 2 / self.per_token


def flops_of(model: ModelSpec) -> Flops:
    """A model's arithmetic."""
    token = 0.0
    pairs: dict[int | None, float] = {}
    for layer in model.layers:
        for op in operators(model, layer):
            if isinstance(op, AttentionOperator):
                pairs[op.window] = pairs.get(op.window, 0.0) + layer.count * op.prefill.flops_per_pair
            elif isinstance(op, Gemm | GroupedGemm):
                visits = op.top_k if isinstance(op, GroupedGemm) else 1
                token += layer.count * visits * 2.0 * op.k * op.n
    token += sum(2.0 * op.k * op.n for op in head_operators(model) if isinstance(op, Gemm))
    return Flops(token, tuple(pairs.items()))


def _pairs(lengths: Floats, window: int | None) -> Floats:
    """Pairs of a token and one that it attends to, itself included."""
    if window is None:
        return lengths * (lengths + 1) / 2
    seen = np.minimum(lengths, window)
    found: Floats = seen * (seen + 1) / 2 + (lengths - seen) * window
    return found
