"""Step times as flat tables, worked out before the clock starts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.cost.graphs import GraphPlan, graph_plan
from steelyard.cost.host import HostCost
from steelyard.cost.source import CostSource, Floats, PrefillAttention
from steelyard.model import (
    AttentionOperator,
    Collective,
    Elementwise,
    Gemm,
    GroupedGemm,
    ModelSpec,
    head_operators,
    kv_dtype_bytes,
    operators,
)
from steelyard.scenario import EngineSpec

_NO_LIMIT = 1 << 60
_MOST_REMEMBERED = 1 << 16


@dataclass(frozen=True)
class DecodeAttention:
    """Decode attention of one kind of layer, all its layers together."""

    seconds: float
    per_token: float
    window: int | None


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
        decode: tuple[DecodeAttention, ...],
        prefill: tuple[tuple[int, PrefillAttention], ...],
        graphs: GraphPlan,
        host: HostCost,
    ) -> None:
        self._tokens: list[float] = token_seconds.tolist()
        self._head: list[float] = head_seconds.tolist()
        self._decode = decode
        self._prefill = prefill
        self._graphs = graphs
        self._host = host
        self._seen: dict[tuple[int, int], float] = {}
        self._lines: dict[int, tuple[tuple[int, float, float], ...]] = {}

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
            for part in self._decode:
                seen = kv if part.window is None else min(kv, n * part.window)
                attention += part.seconds + part.per_token * seen
        sequences = n + len(chunks)
        padded = self._graphs.padded(tokens, decode_only=False)
        gpu = self._tokens[tokens if padded is None else padded] + self._head[sequences] + attention
        host = self._host.launch(sequences, captured=padded is not None, whole=False)
        return max(gpu, host) + self._host.serial

    def _prefill_seconds(self, chunks: list[tuple[int, int]]) -> float:
        """Attention over a step's chunks; a lone chunk is remembered, since prompts of one length recur."""
        lone = chunks[0] if len(chunks) == 1 else None
        if lone is not None and lone in self._seen:
            return self._seen[lone]
        seconds = sum(layers * prefill.seconds(chunks) for layers, prefill in self._prefill)
        if lone is not None and len(self._seen) < _MOST_REMEMBERED:
            self._seen[lone] = seconds
        return seconds

    def _make_lines(self, n: int) -> tuple[tuple[int, float, float], ...]:
        """The pieces of a decode step's time over cached tokens: windows that fill up, and the host's floor."""
        padded = self._graphs.padded(n, decode_only=True)
        rows = n if padded is None else padded
        host = self._host.launch(n, captured=padded is not None, whole=self._graphs.full)
        serial = self._host.serial
        fixed = self._tokens[rows] + self._head[n]  # logits are taken of the real rows only
        bounds = sorted({n * part.window for part in self._decode if part.window is not None} | {_NO_LIMIT})
        pieces: list[tuple[int, float, float]] = []
        start = 0
        for bound in bounds:
            a, b = fixed, 0.0
            for part in self._decode:
                a += part.seconds
                if part.window is None or bound <= n * part.window:
                    b += part.per_token
                else:
                    a += part.per_token * n * part.window
            # The step waits for the host until the GPU has more to do than that.
            crossing = int((host - a) / b) if b > 0 and a < host else (start if a >= host else bound)
            crossing = min(crossing, bound)
            if crossing > start:
                pieces.append((crossing, host + serial, 0.0))
            if crossing < bound:
                pieces.append((bound, a + serial, b))
            start = bound
        return tuple(pieces)


def compile_cost(model: ModelSpec, tp: int, engine: EngineSpec, source: CostSource) -> CompiledCost:
    """Ask a source for every operator a step can run, once, and add up the tables."""
    kv_bytes = kv_dtype_bytes(model, engine.kv_cache_dtype)
    rows = np.arange(engine.max_num_batched_tokens + 1, dtype=np.float64)
    token_seconds = np.zeros_like(rows)
    head_seconds = np.zeros(engine.max_num_seqs + 1)
    decode: list[DecodeAttention] = []
    prefill: list[tuple[int, PrefillAttention]] = []
    kernels = 0
    for layer in model.layers:
        for operator in operators(model, layer, tp):
            kernels += layer.count
            if isinstance(operator, AttentionOperator):
                fixed, slope = source.decode_attention(operator, kv_bytes)
                decode.append(DecodeAttention(layer.count * fixed, layer.count * slope, operator.window))
                prefill.append((layer.count, source.prefill_attention(operator, kv_bytes)))
            else:
                token_seconds += layer.count * source.rows(operator, rows)
    for operator in head_operators(model, tp):
        assert isinstance(operator, Gemm | GroupedGemm | Elementwise | Collective)
        kernels += 1
        if operator_is_per_sequence(operator):
            head_seconds += source.rows(operator, rows[: len(head_seconds)])
        else:
            token_seconds += source.rows(operator, rows)
    return CompiledCost(
        token_seconds=token_seconds,
        head_seconds=head_seconds,
        decode=tuple(decode),
        prefill=tuple(prefill),
        graphs=graph_plan(engine),
        host=HostCost(layers=model.num_layers, kernels=kernels, overlapped=engine.async_scheduling),
    )


def operator_is_per_sequence(operator: Gemm | GroupedGemm | Elementwise | Collective) -> bool:
    """Whether an operator runs on one row per request rather than on every token."""
    return not isinstance(operator, GroupedGemm) and operator.per == "sequence"
