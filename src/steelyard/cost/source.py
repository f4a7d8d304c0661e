"""The interface of cost sources, which know the times of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.kernels import Kernel
from steelyard.model import AttentionOperator, Collective, Elementwise, Gemm, GroupedGemm, Recurrence

Floats = NDArray[np.float64]
Provenance = Literal["measured", "interpolated", "extrapolated", "transferred", "analytic"]
PROVENANCES: tuple[Provenance, ...] = ("measured", "interpolated", "extrapolated", "transferred", "analytic")
MEASURED, INTERPOLATED, EXTRAPOLATED, TRANSFERRED, ANALYTIC = range(5)

RowOperator = Gemm | GroupedGemm | Elementwise | Collective
Answer = TypeVar("Answer")


class Estimate(NamedTuple):
    """Seconds, and the provenance of each as an index into PROVENANCES.

    ``kernels`` are the compiled kernels at each number of rows, if the source knows them.
    """

    seconds: Floats
    provenance: NDArray[np.int8]
    kernels: Sequence[Kernel] | None = None

    @classmethod
    def all_of(cls, seconds: Floats, provenance: int) -> Estimate:
        """Seconds of one provenance."""
        return cls(seconds, np.full(len(seconds), provenance, dtype=np.int8))


@dataclass(frozen=True)
class Curve:
    """Seconds of an even batch over its cached tokens: linear between knots, beyond the last with the last slope. With
    one knot (a window that is shorter than all that was measured) they are the same everywhere.

    A request that is longer than the others delays the kernel. ``skew`` is where the time of an uneven batch lies
    between that of an even one with as many cached tokens (0) and one with all requests as long as the longest (1).
    """

    kv: tuple[float, ...]
    seconds: tuple[float, ...]
    provenance: int
    skew: float = 0.0

    def at(self, kv: Floats) -> Floats:
        """Seconds at each number of cached tokens."""
        x, y = np.array(self.kv), np.array(self.seconds)
        slope = (y[-1] - y[-2]) / (x[-1] - x[-2]) if len(x) > 1 else 0.0
        beyond: Floats = y[-1] + (kv - x[-1]) * slope
        return np.where(kv > x[-1], beyond, np.interp(kv, x, y))


class CostSource(Protocol):
    """Seconds of single operators, or None for an unknown one.

    All queries are made in bulk, before the run.
    """

    @property
    def name(self) -> str:
        """Its name in reports."""
        ...

    def rows(self, operator: RowOperator, rows: Floats) -> Estimate | None:
        """Seconds of an operator for each number of rows (tokens, or sequences for the output head)."""
        ...

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> DecodeAttention | None:
        """One layer's attention over the decodes of a step."""
        ...

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> PrefillAttention | None:
        """One layer's attention over the prompt chunks of a step."""
        ...


@runtime_checkable
class RecurrenceSource(Protocol):
    """A source that may know updates of recurrent state. Cached tokens do not change the time of a decode."""

    @property
    def name(self) -> str:
        """Its name in reports."""
        ...

    def decode_recurrence(self, operator: Recurrence) -> DecodeAttention | None:
        """One layer's update by the decodes of a step."""
        ...

    def prefill_recurrence(self, operator: Recurrence) -> PrefillAttention | None:
        """One layer's update by the prompt chunks of a step."""
        ...


class FirstOf:
    """Several sources, the best first: the first that knows an operator answers.

    ``chosen`` records the source of each operator. The last source must know everything.
    """

    def __init__(self, sources: tuple[CostSource, ...]) -> None:
        self.sources = sources
        self.chosen: dict[str, str] = {}

    @property
    def name(self) -> str:
        return ", ".join(source.name for source in self.sources)

    def rows(self, operator: RowOperator, rows: Floats) -> Estimate:
        return self._first(operator.name, lambda source: source.rows(operator, rows))

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> DecodeAttention:
        return self._first("decode attention", lambda source: source.decode_attention(operator, kv_bytes))

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> PrefillAttention:
        return self._first("prefill attention", lambda source: source.prefill_attention(operator, kv_bytes))

    def decode_recurrence(self, operator: Recurrence) -> DecodeAttention:
        return self._recurrence("decode recurrence", lambda source: source.decode_recurrence(operator))

    def prefill_recurrence(self, operator: Recurrence) -> PrefillAttention:
        return self._recurrence("prefill recurrence", lambda source: source.prefill_recurrence(operator))

    def _recurrence(self, what: str, ask: Callable[[RecurrenceSource], Answer | None]) -> Answer:
        return self._first(what, lambda source: ask(source) if isinstance(source, RecurrenceSource) else None)

    def _first(self, what: str, ask: Callable[[CostSource], Answer | None]) -> Answer:
        for source in self.sources:
            found = ask(source)
            if found is not None:
                self.chosen[what] = source.name
                return found
        raise AssertionError(f"no source knows {what}")


class Decodes(NamedTuple):
    """The decodes of a step: how many, the cached tokens of all, and those of the longest."""

    requests: int
    cached: int
    longest: int


class DecodeAttention(Protocol):
    """Decode attention of one layer, for any number of requests."""

    def curve(self, requests: int) -> Curve:
        """Seconds of a step of ``requests``, over the cached tokens of all of them."""
        ...


class PrefillAttention(Protocol):
    """Prefill attention of one layer as a function of a step's chunks."""

    @property
    def provenance(self) -> int:
        """The provenance of its seconds: an index into PROVENANCES."""
        ...

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds for chunks of (new tokens, cached tokens before them), all in one kernel."""
        ...

    def together(self, chunks: Sequence[tuple[int, int]], decodes: Decodes) -> float | None:
        """Seconds for chunks and decodes in one kernel; None if a source only knows them apart."""
        ...
