"""A source with scaled times: how much a result changes with the times of a family of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from steelyard.cost.source import (
    CostSource,
    Curve,
    DecodeAttention,
    Decodes,
    Estimate,
    Floats,
    PrefillAttention,
    RecurrenceSource,
    RowOperator,
)
from steelyard.model import AttentionOperator, Collective, Gemm, GroupedGemm, Recurrence

FAMILIES = ("gemm", "experts", "attention", "collective", "small", "recurrence")


def family_of(operator: RowOperator) -> str:
    """The family that an operator's error belongs to."""
    if isinstance(operator, Gemm):
        return "gemm"
    if isinstance(operator, GroupedGemm):
        return "experts"
    return "collective" if isinstance(operator, Collective) else "small"


@dataclass(frozen=True)
class Scaled:
    """Another source's seconds, times a factor for each family."""

    source: CostSource
    factors: Mapping[str, float]

    @property
    def name(self) -> str:
        return self.source.name

    def rows(self, operator: RowOperator, rows: Floats) -> Estimate | None:
        found = self.source.rows(operator, rows)
        factor = self.factors.get(family_of(operator), 1.0)
        return None if found is None else found._replace(seconds=found.seconds * factor)

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> DecodeAttention | None:
        found = self.source.decode_attention(operator, kv_bytes)
        return None if found is None else _ScaledDecodes(found, self.factors.get("attention", 1.0))

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> PrefillAttention | None:
        found = self.source.prefill_attention(operator, kv_bytes)
        return None if found is None else _ScaledPrefill(found, self.factors.get("attention", 1.0))

    def decode_recurrence(self, operator: Recurrence) -> DecodeAttention | None:
        found = self.source.decode_recurrence(operator) if isinstance(self.source, RecurrenceSource) else None
        return None if found is None else _ScaledDecodes(found, self.factors.get("recurrence", 1.0))

    def prefill_recurrence(self, operator: Recurrence) -> PrefillAttention | None:
        found = self.source.prefill_recurrence(operator) if isinstance(self.source, RecurrenceSource) else None
        return None if found is None else _ScaledPrefill(found, self.factors.get("recurrence", 1.0))


@dataclass(frozen=True)
class _ScaledDecodes:
    """Decode attention, times a factor."""

    decodes: DecodeAttention
    factor: float

    def curve(self, requests: int) -> Curve:
        found = self.decodes.curve(requests)
        return replace(found, seconds=tuple(second * self.factor for second in found.seconds))


@dataclass(frozen=True)
class _ScaledPrefill:
    """Prefill attention, times a factor."""

    prefill: PrefillAttention
    factor: float

    @property
    def provenance(self) -> int:
        return self.prefill.provenance

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        return self.factor * self.prefill.seconds(chunks)

    def together(self, chunks: Sequence[tuple[int, int]], decodes: Decodes) -> float | None:
        found = self.prefill.together(chunks, decodes)
        return None if found is None else self.factor * found
