"""Decode context parallelism (DCP) as vLLM runs it: cached tokens are split over GPUs.

Every GPU runs the queries of all of them over its own tokens. The partial results are weighted by their log-sum-exps
and reduced to the GPUs of the heads. MLA does so for decodes; for a chunk of a prompt it gathers the latents of the
context. Other kinds of attention treat decodes and chunks alike, and compute separately how a step's tokens attend to
each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from steelyard.cost.source import CostSource, Curve, DecodeAttention, Decodes, FirstOf, PrefillAttention
from steelyard.model import AttentionOperator, Collective, ContextParallel, Elementwise

_FLOAT32 = 4  # bytes
_LONGEST_LOG2 = 24  # tokens of context up to which the gather is tabulated; beyond, the last slope continues


def exchange(operator: AttentionOperator, parallel: ContextParallel) -> tuple[Collective | Elementwise, ...]:
    """Communication around the attention kernel, per query token: its heads are those of all GPUs."""
    shape, ranks, size = operator.decode, parallel.ranks, parallel.value_bytes
    queries, outputs = shape.heads * shape.qk_dim * size, shape.heads * shape.v_dim * size
    sums = ranks * shape.heads * _FLOAT32
    found: list[Collective | Elementwise] = [
        Collective("query_gather", queries, kind="allgather", ranks=ranks),
        Collective("lse_gather", sums, kind="allgather", ranks=ranks),
        Elementwise("lse_correction", 2 * outputs + sums),
        Collective("output_scatter", outputs, kind="reducescatter", ranks=ranks),
    ]
    if operator.attention != "mla":
        keys = shape.kv_heads * (shape.qk_dim + shape.v_dim) * size
        found.append(Elementwise("own_attention", (queries + outputs) // ranks + keys))
        found.append(Elementwise("attention_merge", 3 * outputs // ranks))
    return tuple(found)


def context_gather(operator: AttentionOperator, parallel: ContextParallel) -> Collective:
    """The gather of a chunk's context, per cached token."""
    size = operator.kv_elements * parallel.value_bytes
    return Collective("context_gather", size, kind="allgather", ranks=parallel.ranks)


class ContextParallelSource(FirstOf):
    """The first source that knows a kernel, for GPUs with a part of the tokens each; a step has up to ``most``
    tokens."""

    def __init__(self, sources: tuple[CostSource, ...], most: int) -> None:
        super().__init__(sources)
        self.most = most

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> DecodeAttention:
        here, parallel = super().decode_attention(operator, kv_bytes), operator.context_parallel
        return here if parallel is None else _ParallelDecodes(here, parallel.ranks, self._exchanges(operator, parallel))

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> PrefillAttention:
        """Chunks have as many query-key pairs as without DCP: all GPUs' heads and a part of the tokens, or the other
        way round."""
        alone, parallel = super().prefill_attention(operator, kv_bytes), operator.context_parallel
        if parallel is None:
            return alone
        if operator.attention == "mla":
            tokens = np.array([0.0, *(2.0**i for i in range(_LONGEST_LOG2 + 1))])
            seconds = self.rows(context_gather(operator, parallel), tokens).seconds
            return _Gathered(alone, Curve(tuple(tokens.tolist()), tuple(seconds.tolist()), alone.provenance))
        return _Exchanged(alone, self._exchanges(operator, parallel), self.decode_attention(operator, kv_bytes))

    def _exchanges(self, operator: AttentionOperator, parallel: ContextParallel) -> list[float]:
        """Seconds of the communication around the kernel, by query tokens."""
        tokens = np.arange(self.most + 1, dtype=np.float64)
        seconds = np.zeros_like(tokens)
        for each in exchange(operator, parallel):
            seconds += self.rows(each, tokens).seconds
        found: list[float] = seconds.tolist()
        return found


@dataclass(frozen=True)
class _ParallelDecodes:
    """Decodes whose cached tokens are on several GPUs, with the exchange that combines partial results."""

    here: DecodeAttention
    ranks: int
    exchange: list[float]  # by tokens

    def curve(self, requests: int) -> Curve:
        here, more = self.here.curve(requests), self.exchange[requests]
        cached = tuple(kv * self.ranks for kv in here.kv)
        return replace(here, kv=cached, seconds=tuple(seconds + more for seconds in here.seconds))


@dataclass(frozen=True)
class _Gathered:
    """Chunks whose context is gathered first; decodes have their own kernel and communication."""

    alone: PrefillAttention
    gather: Curve

    @property
    def provenance(self) -> int:
        return self.alone.provenance

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        context = sum(before for _, before in chunks)
        return self.alone.seconds(chunks) + float(self.gather.at(np.array([float(context)]))[0])

    def together(self, chunks: Sequence[tuple[int, int]], decodes: Decodes) -> None:
        return None


@dataclass(frozen=True)
class _Exchanged:
    """Chunks with context, which share their communication with the step's decodes. A step without either has none."""

    alone: PrefillAttention
    exchange: list[float]  # by tokens
    decodes: DecodeAttention
    _curves: dict[int, Curve] = field(default_factory=dict)

    @property
    def provenance(self) -> int:
        return self.alone.provenance

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        some = any(before for _, before in chunks)
        return self.alone.seconds(chunks) + (self.exchange[_new(chunks)] if some else 0.0)

    def together(self, chunks: Sequence[tuple[int, int]], decodes: Decodes) -> float:
        """The sum of both, without the communication, which the curve of decodes includes."""
        requests, cached, longest = decodes
        if requests not in self._curves:
            self._curves[requests] = self.decodes.curve(requests)
        curve = self._curves[requests]
        even, all_longest = curve.at(np.array([float(cached), float(requests * longest)])).tolist()
        joined = self.exchange[requests + _new(chunks)] - self.exchange[requests]
        return self.alone.seconds(chunks) + float(even + curve.skew * (all_longest - even)) + joined


def _new(chunks: Sequence[tuple[int, int]]) -> int:
    return sum(tokens for tokens, _ in chunks)
