"""Where operator times come from: the interface between what runs and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from steelyard.model import AttentionOperator, Collective, Elementwise, Gemm, GroupedGemm

Floats = NDArray[np.float64]
Provenance = Literal["measured", "interpolated", "extrapolated", "analytic"]
PROVENANCES: tuple[Provenance, ...] = ("measured", "interpolated", "extrapolated", "analytic")
MEASURED, INTERPOLATED, EXTRAPOLATED, ANALYTIC = range(4)

RowOperator = Gemm | GroupedGemm | Elementwise | Collective


class Estimate(NamedTuple):
    """Seconds, and what each of them is: an index into PROVENANCES."""

    seconds: Floats
    provenance: NDArray[np.int8]

    @classmethod
    def all_of(cls, seconds: Floats, provenance: int) -> Estimate:
        """Seconds of one provenance."""
        return cls(seconds, np.full(len(seconds), provenance, dtype=np.int8))


@dataclass(frozen=True)
class Curve:
    """Seconds over cached tokens: straight between knots, and on beyond the last with the last slope."""

    kv: tuple[float, ...]
    seconds: tuple[float, ...]
    provenance: int

    def at(self, kv: Floats) -> Floats:
        """Seconds at each number of cached tokens."""
        x, y = np.array(self.kv), np.array(self.seconds)
        slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
        beyond: Floats = y[-1] + (kv - x[-1]) * slope
        return np.where(kv > x[-1], beyond, np.interp(kv, x, y))


class CostSource(Protocol):
    """Seconds of single operators. Everything is asked for in bulk, before the clock starts."""

    def rows(self, operator: RowOperator, rows: Floats) -> Estimate:
        """Seconds of an operator for each number of rows (tokens, or sequences for the output head)."""
        ...

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float, requests: int) -> Curve:
        """One layer's attention of a decode step of so many requests, over all their cached tokens."""
        ...

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> PrefillAttention:
        """How long one layer takes over the prompt chunks of a step."""
        ...


class PrefillAttention(Protocol):
    """Prefill attention of one layer as a function of a step's chunks."""

    @property
    def provenance(self) -> int:
        """What its seconds are: an index into PROVENANCES."""
        ...

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds for chunks of (new tokens, cached tokens before them), all in one kernel."""
        ...
