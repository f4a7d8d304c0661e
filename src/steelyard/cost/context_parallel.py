"""Attention over tokens that are dealt out to GPUs (decode context parallelism), by what vLLM runs for it.

Every GPU has the queries of all of them look at its own tokens; the parts of the result are weighed by their
log-sum-exps and added up where the heads belong. Latent attention does so for decodes; for a prompt's chunk it gathers
the latents of the context. Other kinds treat decodes and chunks alike, and compute apart what a step's tokens see of
each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from steelyard.cost.source import CostSource, Curve, DecodeAttention, Decodes, FirstOf, PrefillAttention
from steelyard.model import AttentionOperator, Collective, Dealt, Elementwise

_FLOAT32 = 4
_LONGEST_LOG2 = 24  # tokens of context, beyond which gathering them goes on as before


def exchange(operator: AttentionOperator, dealt: Dealt) -> tuple[Collective | Elementwise, ...]:
    """What surrounds the attention kernel, per query token: its heads are those of all GPUs."""
    shape, ranks, size = operator.decode, dealt.ranks, dealt.value_bytes
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


def context_gather(operator: AttentionOperator, dealt: Dealt) -> Collective:
    """The latents of a chunk's context, per cached token."""
    size = operator.kv_elements * dealt.value_bytes
    return Collective("context_gather", size, kind="allgather", ranks=dealt.ranks)


class DealtOut(FirstOf):
    """The first source that knows a kernel, for GPUs that have a part of the tokens each; ``most`` is what a step has
    of them."""

    def __init__(self, sources: tuple[CostSource, ...], most: int) -> None:
        super().__init__(sources)
        self.most = most

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> DecodeAttention:
        here, dealt = super().decode_attention(operator, kv_bytes), operator.dealt
        return here if dealt is None else _DealtDecodes(here, dealt.ranks, self._exchanges(operator, dealt))

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> PrefillAttention:
        """Chunks meet as many keys as if nothing were dealt out: all GPUs' heads and a part of the tokens, or the
        other way round."""
        alone, dealt = super().prefill_attention(operator, kv_bytes), operator.dealt
        if dealt is None:
            return alone
        if operator.attention == "mla":
            tokens = np.array([0.0, *(2.0**i for i in range(_LONGEST_LOG2 + 1))])
            seconds = self.rows(context_gather(operator, dealt), tokens).seconds
            return _Gathered(alone, Curve(tuple(tokens.tolist()), tuple(seconds.tolist()), alone.provenance))
        return _Exchanged(alone, self._exchanges(operator, dealt), self.decode_attention(operator, kv_bytes))

    def _exchanges(self, operator: AttentionOperator, dealt: Dealt) -> list[float]:
        """Seconds of what surrounds the kernel, by query tokens."""
        tokens = np.arange(self.most + 1, dtype=np.float64)
        seconds = np.zeros_like(tokens)
        for each in exchange(operator, dealt):
            seconds += self.rows(each, tokens).seconds
        found: list[float] = seconds.tolist()
        return found


@dataclass(frozen=True)
class _DealtDecodes:
    """Decodes whose cached tokens are on several GPUs, and the exchange that joins what each finds."""

    here: DecodeAttention
    ranks: int
    exchange: list[float]  # by tokens

    def curve(self, requests: int) -> Curve:
        here, more = self.here.curve(requests), self.exchange[requests]
        cached = tuple(kv * self.ranks for kv in here.kv)
        return replace(here, kv=cached, seconds=tuple(seconds + more for seconds in here.seconds))


@dataclass(frozen=True)
class _Gathered:
    """Chunks whose context is gathered first; decodes are a kernel and an exchange of their own."""

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
    """Chunks with context, which share one exchange with the step's decodes. A step without either has none."""

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
        """One after the other, but for the exchange, which the curve of decodes has in it."""
        requests, cached, longest = decodes
        if requests not in self._curves:
            self._curves[requests] = self.decodes.curve(requests)
        curve = self._curves[requests]
        even, all_longest = curve.at(np.array([float(cached), float(requests * longest)])).tolist()
        joined = self.exchange[requests + _new(chunks)] - self.exchange[requests]
        return self.alone.seconds(chunks) + float(even + curve.skew * (all_longest - even)) + joined


def _new(chunks: Sequence[tuple[int, int]]) -> int:
    return sum(tokens for tokens, _ in chunks)
