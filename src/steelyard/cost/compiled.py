"""Step times as flat tables, worked out before the clock starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.graphs import GraphPlan, graph_plan
from steelyard.cost.host import HINDERED, HostCost, HostTerms, Launch
from steelyard.cost.kernels import ExpertKernel, FirstUses
from steelyard.cost.scaled import family_of
from steelyard.cost.source import PROVENANCES, CostSource, Decodes, Estimate, FirstOf, Floats, PrefillAttention
from steelyard.cost.step import StepTime
from steelyard.model import (
    AttentionOperator,
    Collective,
    Elementwise,
    Gemm,
    GroupedGemm,
    ModelSpec,
    MoeFfn,
    head_operators,
    kv_dtype_bytes,
    operators,
)
from steelyard.scenario import EngineSpec

Ints = NDArray[np.int64]
_NO_LIMIT = 1 << 60
_MOST_REMEMBERED = 1 << 16
_SAMPLED = 256  # prefills looked at for the shares of provenance


@dataclass(frozen=True)
class Stretches:
    """Work asked for, one row per stretch of steps alike."""

    steps: Ints
    decodes: Ints  # per step
    decode_keys: Ints  # cached tokens that decodes attend to, over all steps
    prefill_tokens: Ints  # per step
    prefill_requests: Ints  # per step
    prefill_pairs: Ints  # query and key tokens that meet, over all steps


Piece = tuple[int, float, float]  # (kv_max, a, b): a + b * kv seconds while kv is at most kv_max


@dataclass(frozen=True)
class AttentionPart:
    """Attention of one kind of layer: the operator, how many layers, and its prefill."""

    operator: AttentionOperator
    layers: int
    prefill: PrefillAttention


class CompiledCost:
    """Answers the engine's one question from tables.

    ``token_seconds[t]`` are the operators that work on every token, ``head_seconds[s]`` those on one row per request.
    ``expert_seconds[t]`` are routed experts: rows that pad a step to a captured size hold what earlier steps left
    there, some of it alike, and choose about half as many further experts as real tokens would.
    Decode attention is in line with the cached tokens, up to the sliding window, piece by piece for each batch size.
    """

    def __init__(
        self,
        *,
        token_seconds: Floats,
        expert_seconds: Floats,
        head_seconds: Floats,
        attention: tuple[AttentionPart, ...],
        source: FirstOf,
        kv_bytes: float,
        families: dict[str, set[str]],
        graphs: GraphPlan,
        host: HostCost,
        kernels: tuple[ExpertKernel, ...] = (),
        ran: tuple[int, ...] = (),
    ) -> None:
        self._by_provenance = token_seconds + expert_seconds, head_seconds
        self._tokens: list[float] = token_seconds.sum(axis=0).tolist()
        self._experts: list[float] = expert_seconds.sum(axis=0).tolist()
        self._head: list[float] = head_seconds.sum(axis=0).tolist()
        self._attention = attention
        self._source = source
        self._kv_bytes = kv_bytes
        self.families = families  # the sources that answered, by family of operators
        self.graphs = graphs
        self.host = host
        self._kernels = kernels  # those that a fresh engine compiles on first use
        self._ran = ran  # tokens of steps before the first request
        self._seen: dict[tuple[int, int], float] = {}
        self._fixed: dict[int, float] = {}  # by batch size, made when first asked for, as are the following
        self._decode_host: dict[int, tuple[float, float, float]] = {}
        self._pieces: dict[int, tuple[Piece, ...]] = {}
        self._skew: dict[int, float] = {}

    @property
    def chosen(self) -> Mapping[str, str]:
        """The source that answered, by operator."""
        return self._source.chosen

    def first_uses(self) -> FirstUses | None:
        """The kernels of an engine that has just started; None where none is known to be compiled later."""
        if not self._kernels:
            return None
        return FirstUses(self._kernels, self.graphs, self._ran, self.host.terms.compile)

    def decode_line(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        """(a, b, kv_max): the GPU's part of a decode-only step is a + b * kv seconds while kv is at most kv_max."""
        fixed = self._fixed.get(n)
        if fixed is None:
            padded = self.graphs.padded(n, decode_only=True)
            rows = n if padded is None else padded
            fixed = self._fixed[n] = self._tokens[rows] + self._experts[(n + rows) // 2] + self._head[n]
        a, b, kv_max = self._decode_attention(n, kv, longest)
        return fixed + a, b, kv_max

    def decode_host(self, n: int) -> tuple[float, float, float]:
        """Prepare, launch and tail of a decode-only step."""
        found = self._decode_host.get(n)
        if found is None:
            padded = self.graphs.padded(n, decode_only=True)
            rows = n if padded is None else padded
            found = self._decode_host[n] = self._host_part(rows, n, self.graphs.launch(n, decode_only=True))
        return found

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        """A step with n decodes and prefill chunks of (tokens, context before them)."""
        tokens = n + sum(chunk for chunk, _ in chunks)
        attention = self._mixed_attention(chunks, Decodes(n, kv, longest)) if n else self._prefill_seconds(chunks)
        requests = n + len(chunks)
        padded = self.graphs.padded(tokens, decode_only=False)
        rows = tokens if padded is None else padded
        gpu = self._tokens[rows] + self._experts[(tokens + rows) // 2] + self._head[requests] + attention
        how = self.graphs.launch(tokens, decode_only=False)
        prepare, launch, tail = self._host_part(rows, requests, how)
        return StepTime(gpu, prepare, launch, tail, HINDERED * launch if how == "eager" else 0.0)

    def _host_part(self, rows: int, requests: int, how: Launch) -> tuple[float, float, float]:
        """Prepare, launch and tail: the output head comes last, after the last layer where they come one by one."""
        tail = self._head[requests]
        if how != "whole":
            tail += (self._tokens[rows] + self._experts[rows]) / self.host.layers
        return self.host.prepare(requests), self.host.launch(how), tail

    def by_provenance(self, done: Stretches) -> Floats:
        """About how many GPU seconds of a run stand under each provenance, for its shares.

        Padding is left aside, decodes are taken at a stretch's mean length, and of many prefills an even sample.
        """
        tokens, head = self._by_provenance
        rows = done.decodes + done.prefill_requests
        found: Floats = (tokens[:, done.decodes + done.prefill_tokens] + head[:, rows]) @ done.steps.astype(np.float64)
        layers = sum(part.layers for part in self._attention)
        for n in np.unique(done.decodes[done.decodes > 0]).tolist():
            here = done.decodes == n
            ends, a, b = (np.array(column) for column in zip(*self._decode_pieces(n), strict=True))
            mean = done.decode_keys[here] / done.steps[here]
            piece = np.searchsorted(ends, mean)
            seconds = float(((a[piece] + b[piece] * mean) * done.steps[here]).sum())
            for part in self._attention:
                kind = self._source.decode_attention(part.operator, self._kv_bytes, n).provenance
                found[kind] += seconds * part.layers / layers
        filled = np.flatnonzero(done.prefill_tokens)
        sample = filled[:: max(1, len(filled) // _SAMPLED)]
        for new, pairs in zip(done.prefill_tokens[sample].tolist(), done.prefill_pairs[sample].tolist(), strict=True):
            before = max(0, (pairs - new * (new + 1) // 2) // new)
            for part in self._attention:
                seconds = part.layers * part.prefill.seconds([(new, before)])
                found[part.prefill.provenance] += seconds * len(filled) / len(sample)
        return found

    def _mixed_attention(self, chunks: list[tuple[int, int]], decodes: Decodes) -> float:
        """Chunks and decodes in one kernel; one after the other where the source does not know better."""
        seconds = 0.0
        for part in self._attention:
            together = part.prefill.together(chunks, decodes)
            if together is None:
                a, b, _ = self._decode_attention(*decodes)
                return self._prefill_seconds(chunks) + a + b * decodes.cached
            seconds += part.layers * together
        return seconds

    def _prefill_seconds(self, chunks: list[tuple[int, int]]) -> float:
        """Attention over a step's chunks; that of a lone one is remembered, since prompts of one length recur."""
        lone = chunks[0] if len(chunks) == 1 else None
        if lone is not None and lone in self._seen:
            return self._seen[lone]
        seconds = sum(part.layers * part.prefill.seconds(chunks) for part in self._attention)
        if lone is not None and len(self._seen) < _MOST_REMEMBERED:
            self._seen[lone] = seconds
        return seconds

    def _decode_attention(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        """(a, b, kv_max) of decode attention: an uneven batch lies between an even one and one of all the longest."""
        pieces = self._pieces.get(n)
        if pieces is None:
            pieces = self._pieces[n] = self._decode_pieces(n)
        kv_max, a, b = next(piece for piece in pieces if kv <= piece[0])
        skew = self._skew[n]
        more = n * longest - kv
        if not skew or not more:
            return a, b, kv_max
        longest_max, longest_a, longest_b = next(piece for piece in pieces if kv + more <= piece[0])
        a += skew * (longest_a + longest_b * more - a)
        b += skew * (longest_b - b)
        return a, b, min(kv_max, longest_max - more)

    def _decode_pieces(self, n: int) -> tuple[Piece, ...]:
        """Decode attention of all layers: straight between the knots of the source's curves and the windows."""
        curves = []
        knots = {0.0}
        for part in self._attention:
            curve = self._source.decode_attention(part.operator, self._kv_bytes, n)
            edge = float("inf") if part.operator.window is None else float(n * part.operator.window)
            curves.append((part.layers, curve, edge))
            knots |= {kv for kv in (*curve.kv, edge) if 0 < kv < min(edge, _NO_LIMIT) or kv == edge < _NO_LIMIT}
        at = np.array([*sorted(knots), 2 * max(knots) + 1024])
        seconds = np.zeros_like(at)
        for layers, curve, edge in curves:
            seconds += layers * curve.at(np.minimum(at, edge))
        self._skew[n] = sum(layers * curve.skew for layers, curve, _ in curves) / sum(layers for layers, _, _ in curves)
        slopes = np.diff(seconds) / np.diff(at)
        ends = [*(int(knot) for knot in at[1:-1]), _NO_LIMIT]
        starts = zip(ends, at.tolist(), seconds.tolist(), slopes.tolist(), strict=False)
        return tuple((end, value - slope * knot, slope) for end, knot, value, slope in starts)


def compile_cost(
    model: ModelSpec, tp: int, engine: EngineSpec, *sources: CostSource, terms: HostTerms | None = None
) -> CompiledCost:
    """Ask the first source that knows it for every operator a step can run, once, and add up the tables."""
    source = FirstOf(sources)
    kv_bytes = kv_dtype_bytes(model, engine.kv_cache_dtype)
    rows = np.arange(engine.max_num_batched_tokens + 1, dtype=np.float64)
    token_seconds, expert_seconds = np.zeros((2, len(PROVENANCES), len(rows)))
    head_seconds = np.zeros((len(PROVENANCES), engine.max_num_seqs + 1))
    attention: list[AttentionPart] = []
    families: dict[str, set[str]] = {}
    kernels: list[ExpertKernel] = []
    for layer in model.layers:
        for operator in operators(model, layer, tp):
            if isinstance(operator, AttentionOperator):
                prefill = source.prefill_attention(operator, kv_bytes)
                attention.append(AttentionPart(operator, layer.count, prefill))
                families.setdefault("attention", set()).add(source.chosen["prefill attention"])
            else:
                table = expert_seconds if isinstance(operator, GroupedGemm) else token_seconds
                found = source.rows(operator, rows)
                _add(table, layer.count, found)
                if engine.fresh and isinstance(operator, GroupedGemm) and found.kernels is not None:
                    kernels.append(ExpertKernel(found.kernels, operator.top_k))
                families.setdefault(family_of(operator), set()).add(source.chosen[operator.name])
    for operator in head_operators(model, tp):
        assert isinstance(operator, Gemm | GroupedGemm | Elementwise | Collective)
        if operator_is_per_sequence(operator):
            _add(head_seconds, 1, source.rows(operator, rows[: head_seconds.shape[1]]))
        else:
            _add(token_seconds, 1, source.rows(operator, rows))
    graphs = graph_plan(engine)
    return CompiledCost(
        token_seconds=token_seconds,
        expert_seconds=expert_seconds,
        head_seconds=head_seconds,
        attention=tuple(attention),
        source=source,
        kv_bytes=kv_bytes,
        families=families,
        graphs=graphs,
        host=host_cost(model, terms or HostTerms()),
        kernels=tuple(kernels),
        ran=(engine.max_num_batched_tokens, engine.max_num_seqs, *graphs.sizes, *_warmed_up(engine, graphs)),
    )


def _warmed_up(engine: EngineSpec, graphs: GraphPlan) -> list[int]:
    """Steps of the warm-up that ran kernel by kernel; others replayed a graph and compiled nothing."""
    return [tokens for tokens in engine.warm_up if graphs.launch(tokens, decode_only=False) == "eager"]


def host_cost(model: ModelSpec, terms: HostTerms) -> HostCost:
    """The host's part of a model's steps."""
    expert_layers = sum(layer.count for layer in model.layers if isinstance(layer.ffn, MoeFfn))
    return HostCost(terms, model.num_layers, expert_layers)


def _add(table: Floats, count: int, found: Estimate) -> None:
    """Add an operator's seconds to the table, each under its provenance."""
    for kind in range(len(PROVENANCES)):
        table[kind] += np.where(found.provenance == kind, count * found.seconds, 0.0)


def operator_is_per_sequence(operator: Gemm | GroupedGemm | Elementwise | Collective) -> bool:
    """Whether an operator runs on one row per request rather than on every token."""
    return not isinstance(operator, GroupedGemm) and operator.per == "sequence"
