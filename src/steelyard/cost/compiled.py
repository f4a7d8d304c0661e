"""Step times as flat tables, worked out before the clock starts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.graphs import GraphPlan, graph_plan
from steelyard.cost.host import HostCost
from steelyard.cost.source import PROVENANCES, CostSource, Estimate, FirstOf, Floats, PrefillAttention
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
    Decode attention is in line with the cached tokens, up to the sliding window; ``lines[n]`` holds the pieces for
    each batch size, made when first asked for.
    """

    def __init__(
        self,
        *,
        token_seconds: Floats,
        head_seconds: Floats,
        attention: tuple[AttentionPart, ...],
        source: FirstOf,
        kv_bytes: float,
        graphs: GraphPlan,
        host: HostCost,
    ) -> None:
        self._by_provenance = token_seconds, head_seconds
        self._tokens: list[float] = token_seconds.sum(axis=0).tolist()
        self._head: list[float] = head_seconds.sum(axis=0).tolist()
        self._attention = attention
        self._source = source
        self._kv_bytes = kv_bytes
        self._graphs = graphs
        self._host = host
        self._seen: dict[tuple[int, int], float] = {}
        self._lines: dict[int, tuple[Piece, ...]] = {}
        self._pieces: dict[int, tuple[Piece, ...]] = {}

    def decode_line(self, n: int, kv: int) -> tuple[float, float, int]:
        """(a, b, kv_max): a decode-only step takes a + b * kv seconds while kv is at most kv_max."""
        lines = self._lines.get(n)
        if lines is None:
            lines = self._lines[n] = self._make_lines(n)
        for kv_max, a, b in lines:
            if kv <= kv_max:
                return a, b, kv_max
        raise AssertionError("the last piece has no end")

    def mixed(self, n: int, kv: int, chunks: list[tuple[int, int]]) -> float:
        """Seconds of a step with n decodes and prefill chunks of (tokens, context before them)."""
        tokens = n + sum(chunk for chunk, _ in chunks)
        attention = self._prefill_seconds(chunks) if chunks else 0.0
        if n:
            attention += self._decode_seconds(n, kv)
        sequences = n + len(chunks)
        padded = self._graphs.padded(tokens, decode_only=False)
        gpu = self._tokens[tokens if padded is None else padded] + self._head[sequences] + attention
        host = self._host.launch(sequences, captured=padded is not None, whole=False)
        return max(gpu, host) + self._host.serial

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

    def _prefill_seconds(self, chunks: list[tuple[int, int]]) -> float:
        """Attention over a step's chunks; a lone chunk is remembered, since prompts of one length recur."""
        lone = chunks[0] if len(chunks) == 1 else None
        if lone is not None and lone in self._seen:
            return self._seen[lone]
        seconds = sum(part.layers * part.prefill.seconds(chunks) for part in self._attention)
        if lone is not None and len(self._seen) < _MOST_REMEMBERED:
            self._seen[lone] = seconds
        return seconds

    def _decode_seconds(self, n: int, kv: int) -> float:
        pieces = self._pieces.get(n)
        if pieces is None:
            pieces = self._pieces[n] = self._decode_pieces(n)
        return next(a + b * kv for kv_max, a, b in pieces if kv <= kv_max)

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
        slopes = np.diff(seconds) / np.diff(at)
        ends = [*(int(knot) for knot in at[1:-1]), _NO_LIMIT]
        starts = zip(ends, at.tolist(), seconds.tolist(), slopes.tolist(), strict=False)
        return tuple((end, value - slope * knot, slope) for end, knot, value, slope in starts)

    def _make_lines(self, n: int) -> tuple[Piece, ...]:
        """The pieces of a decode step's time over cached tokens, with the host's floor under them."""
        padded = self._graphs.padded(n, decode_only=True)
        rows = n if padded is None else padded
        host = self._host.launch(n, captured=padded is not None, whole=self._graphs.full)
        serial = self._host.serial
        fixed = self._tokens[rows] + self._head[n]  # logits are taken of the real rows only
        pieces: list[Piece] = []
        start = 0
        for bound, a, b in self._decode_pieces(n):
            a += fixed
            # The step waits for the host until the GPU has more to do than that.
            crossing = start if a + b * start >= host else bound
            if a + b * start < host < a + b * bound:
                crossing = min(bound, int((host - a) / b))
            if crossing > start:
                pieces.append((crossing, host + serial, 0.0))
            if crossing < bound:
                pieces.append((bound, a + serial, b))
            start = bound
        return tuple(pieces)


def compile_cost(model: ModelSpec, tp: int, engine: EngineSpec, *sources: CostSource) -> CompiledCost:
    """Ask the first source that knows it for every operator a step can run, once, and add up the tables."""
    source = FirstOf(sources)
    kv_bytes = kv_dtype_bytes(model, engine.kv_cache_dtype)
    rows = np.arange(engine.max_num_batched_tokens + 1, dtype=np.float64)
    token_seconds = np.zeros((len(PROVENANCES), len(rows)))
    head_seconds = np.zeros((len(PROVENANCES), engine.max_num_seqs + 1))
    attention: list[AttentionPart] = []
    for layer in model.layers:
        for operator in operators(model, layer, tp):
            if isinstance(operator, AttentionOperator):
                prefill = source.prefill_attention(operator, kv_bytes)
                attention.append(AttentionPart(operator, layer.count, prefill))
            else:
                _add(token_seconds, layer.count, source.rows(operator, rows))
    for operator in head_operators(model, tp):
        assert isinstance(operator, Gemm | GroupedGemm | Elementwise | Collective)
        if operator_is_per_sequence(operator):
            _add(head_seconds, 1, source.rows(operator, rows[: head_seconds.shape[1]]))
        else:
            _add(token_seconds, 1, source.rows(operator, rows))
    return CompiledCost(
        token_seconds=token_seconds,
        head_seconds=head_seconds,
        attention=tuple(attention),
        source=source,
        kv_bytes=kv_bytes,
        graphs=graph_plan(engine),
        host=host_cost(model, engine),
    )


def host_cost(model: ModelSpec, engine: EngineSpec) -> HostCost:
    """The host's part of a model's steps."""
    expert_layers = sum(layer.count for layer in model.layers if isinstance(layer.ffn, MoeFfn))
    return HostCost(model.num_layers, expert_layers, overlapped=engine.async_scheduling)


def _add(table: Floats, count: int, found: Estimate) -> None:
    """Add an operator's seconds to the table, each under its provenance."""
    for kind in range(len(PROVENANCES)):
        table[kind] += np.where(found.provenance == kind, count * found.seconds, 0.0)


def operator_is_per_sequence(operator: Gemm | GroupedGemm | Elementwise | Collective) -> bool:
    """Whether an operator runs on one row per request rather than on every token."""
    return not isinstance(operator, GroupedGemm) and operator.per == "sequence"
