"""Where operator times come from: the interface between what runs and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.model import AttentionOperator, Collective, Elementwise, Gemm, GroupedGemm

Floats = NDArray[np.float64]
Provenance = Literal["measured", "interpolated", "extrapolated", "analytic"]
PROVENANCES: tuple[Provenance, ...] = ("measured", "interpolated", "extrapolated", "analytic")

RowOperator = Gemm | GroupedGemm | Elementwise | Collective


class CostSource(Protocol):
    """Seconds of single operators. Everything is asked for in bulk, before the clock starts."""

    @property
    def provenance(self) -> Provenance:
        """What its figures are."""
        ...

    def rows(self, operator: RowOperator, rows: Floats) -> Floats:
        """Seconds of an operator for each number of rows (tokens, or sequences for the output head)."""
        ...

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> tuple[float, float]:
        """(seconds, seconds per cached token): one decode step over a batch, of one layer."""
        ...

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> PrefillAttention:
        """How long one layer takes over the prompt chunks of a step."""
        ...


class PrefillAttention(Protocol):
    """Prefill attention of one layer as a function of a step's chunks."""

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds for chunks of (new tokens, cached tokens before them), all in one kernel."""
        ...
