"""Step times as flat tables, computed before the run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.cost.graphs import GraphPlan
from steelyard.cost.host import HINDERED, HostCost, Launch
from steelyard.cost.kernels import ExpertKernel, FirstUses
from steelyard.cost.power import StepPower
from steelyard.cost.source import (
    DecodeAttention,
    Decodes,
    FirstOf,
    Floats,
    PrefillAttention,
    Provenance,
)
from steelyard.cost.step import StepTime
from steelyard.model import (
    AttentionOperator,
    Collective,
    Elementwise,
    Gemm,
    GroupedGemm,
    Recurrence,
)

Ints = NDArray[np.int64]
_NO_LIMIT = 1 << 60  # cached tokens
_MOST_REMEMBERED = 1 << 16  # entries of a cache: bounds its memory
_HALF_OCTAVES = range(6, 37)  # of mean cached tokens, from 8 to 262,144: where the power limit's effect is worked out
_SAMPLED = 256  # prefills sampled for the shares of provenance; chosen


@dataclass(frozen=True)
class Stretches:
    """Work of a run, one row per stretch of equal steps."""

    steps: Ints
    decodes: Ints  # per step
    decode_keys: Ints  # cached tokens that decodes attend to, over all steps
    prefill_tokens: Ints  # per step
    prefill_requests: Ints  # per step
    prefill_pairs: Ints  # pairs of query and key tokens, over all steps


Piece = tuple[int, float, float]  # (kv_max, a, b): a + b * kv seconds while kv is at most kv_max


@dataclass(frozen=True)
class AttentionLayers:
    """Attention of one kind of layer: the operator, how many layers, and its prefills and decodes.

    Updates of recurrent state are kept here as well: their decodes do not depend on cached tokens.
    """

    operator: AttentionOperator | Recurrence
    layers: int
    prefill: PrefillAttention
    decode: DecodeAttention

    def __reduce__(self) -> tuple[Callable[..., AttentionLayers], tuple[object, ...]]:
        """Pickled as its parts, as a compiled class has to say itself."""
        return AttentionLayers, (self.operator, self.layers, self.prefill, self.decode)


class RankBatch(NamedTuple):
    """One data-parallel rank's batch in a step: decodes as in `Decodes`, and chunks of (tokens, context before)."""

    decodes: int
    kv: int
    longest: int
    chunks: Sequence[tuple[int, int]] = ()

    @property
    def tokens(self) -> int:
        """Tokens of the step."""
        return self.decodes + sum(chunk for chunk, _ in self.chunks)

    @property
    def requests(self) -> int:
        """Requests that have any."""
        return self.decodes + len(self.chunks)


DUMMY = RankBatch(1, 1, 1)  # what a rank without work runs while others have work; nothing is sampled from it
_BY_GRAPH: tuple[Launch, ...] = ("eager", "pieces", "whole")


class DecodeLine(NamedTuple):
    """Decode steps of all ranks: for ``steps`` steps, the slowest rank's ``kv`` cached tokens grow by ``n`` a step, and
    a step takes ``a + b * kv`` seconds."""

    a: float
    b: float
    kv: int
    n: int
    steps: int


class CompiledCost:
    """The `StepCost` of an engine, from tables.

    ``token_seconds[t]`` are operators over all tokens, ``head_seconds[s]`` those over one row per request.
    ``collective_seconds`` and ``elementwise_seconds`` are the parts of ``token_seconds`` that are no GEMM.
    ``expert_seconds[t]`` are routed experts. Rows that pad a step to a captured size hold data of earlier steps, some
    of it equal, and choose about half as many further experts as real tokens would. Decode attention is piecewise
    linear in the cached tokens, up to the sliding window, for each batch size.

    Each of ``ranks`` data-parallel ranks has its own batch. Experts and the other operators of ``pooled_seconds`` see
    the tokens of all ranks, and ``exchange_seconds`` are dispatch and combine. ``one_way_seconds`` are those of a pair
    of which only one rank has tokens. For one rank alone, the others are assumed to be as busy.
    """

    def __init__(
        self,
        *,
        token_seconds: Floats,
        expert_seconds: Floats,
        head_seconds: Floats,
        pooled_seconds: Floats | None = None,
        exchange_seconds: Floats | None = None,
        one_way_seconds: Floats | None = None,
        ranks: int = 1,
        attention: tuple[AttentionLayers, ...],
        source: FirstOf,
        kv_bytes: float,
        families: dict[str, set[str]],
        shares: Mapping[str, Mapping[Provenance, float]] | None = None,
        graphs: GraphPlan,
        host: HostCost,
        kernels: tuple[ExpertKernel, ...] = (),
        ran: tuple[int, ...] = (),
        collective_seconds: Floats | None = None,
        elementwise_seconds: Floats | None = None,
        power: StepPower | None = None,
    ) -> None:
        pooled_seconds, exchange_seconds, one_way_seconds = (
            np.zeros_like(expert_seconds) if table is None else table
            for table in (pooled_seconds, exchange_seconds, one_way_seconds)
        )
        all_ranks = (expert_seconds + pooled_seconds + exchange_seconds)[:, ::ranks]
        self._tables = token_seconds, expert_seconds, head_seconds, pooled_seconds, exchange_seconds, one_way_seconds
        self._beside = collective_seconds, elementwise_seconds
        self.ranks = ranks
        self._by_provenance = token_seconds + all_ranks, head_seconds
        self._tokens: list[float] = _summed(token_seconds)
        self._experts: list[float] = _summed(expert_seconds)
        self._pooled: list[float] = _summed(pooled_seconds)
        self._exchange: list[float] = _summed(exchange_seconds)
        self._one_way: list[float] = _summed(one_way_seconds)
        self._head: list[float] = _summed(head_seconds)
        self._attention = attention
        self._source = source
        self._kv_bytes = kv_bytes
        self.families = families  # the sources used, by family of operators
        self.shares = shares or {}  # of each family's time, by provenance
        self.graphs = graphs
        self.host = host
        self._kernels = kernels  # compiled on first use by a fresh engine
        self._ran = ran  # tokens of warm-up steps
        self.power = power
        self._width = self._sampled = 1  # tokens of each decode, and how many of them the output head sees
        self._seen: dict[tuple[int, int], float] = {}
        self._fixed: dict[int, float] = {}  # this and the following caches: by batch size
        self._decode_host: dict[int, tuple[float, float, float]] = {}
        self._decode_graphs: dict[int, tuple[Launch, int | None]] = {}
        self._pieces: dict[int, tuple[Piece, ...]] = {}
        self._slowed: dict[int, tuple[list[float], list[Piece]]] = {}  # ends of pieces, pieces
        self._skew: dict[int, float] = {}
        self._decode_kinds: dict[int, tuple[int, ...]] = {}  # provenance by kind of layer

    def widened(self, tokens: int, sampled: int, graphs: GraphPlan) -> CompiledCost:
        """The same for decodes of ``tokens`` each, the last ``sampled`` of which reach the output head.

        To the attention kernel, the queries of one request are like further heads that share its keys.
        """
        wide = CompiledCost(**self._parts(self._source))
        wide._attention = tuple(self._widened(part, tokens) for part in self._attention)
        wide.graphs = graphs
        wide._width, wide._sampled = tokens, sampled
        return wide

    def changed(self, graphs: GraphPlan, attention: tuple[AttentionLayers, ...]) -> CompiledCost:
        """The same with other graphs, or other prefill attention. Decodes computed so far stay known."""
        made = CompiledCost(**(self._parts(self._source) | {"graphs": graphs, "attention": attention}))
        made._width, made._sampled = self._width, self._sampled
        made._pieces, made._skew = dict(self._pieces), dict(self._skew)
        made._decode_kinds = dict(self._decode_kinds)
        return made

    @property
    def attention(self) -> tuple[AttentionLayers, ...]:
        """Attention by kind of layer."""
        return self._attention

    def __reduce__(self) -> tuple[Callable[..., CompiledCost], tuple[Any, ...]]:
        """Pickled as its tables and the decodes computed so far, without their sources."""
        known = self._pieces, self._skew, self._decode_kinds
        return _read_back, (self._parts(None), self._source.chosen, self._width, self._sampled, known)

    def _parts(self, source: FirstOf | None) -> dict[str, Any]:
        """Its constructor's arguments."""
        tokens, experts, head, pooled, exchange, one_way = self._tables
        return {
            "token_seconds": tokens,
            "expert_seconds": experts,
            "head_seconds": head,
            "pooled_seconds": pooled,
            "exchange_seconds": exchange,
            "one_way_seconds": one_way,
            "ranks": self.ranks,
            "attention": self._attention,
            "source": source,
            "kv_bytes": self._kv_bytes,
            "families": self.families,
            "shares": self.shares,
            "graphs": self.graphs,
            "host": self.host,
            "kernels": self._kernels,
            "ran": self._ran,
            "collective_seconds": self._beside[0],
            "elementwise_seconds": self._beside[1],
            "power": self.power,
        }

    def _widened(self, part: AttentionLayers, queries: int) -> AttentionLayers:
        if isinstance(part.operator, Recurrence):
            raise AssertionError("drafts over recurrent state are refused before")
        decode = part.operator.decode
        operator = replace(part.operator, decode=replace(decode, heads=decode.heads * queries))
        return replace(part, operator=operator, decode=self._source.decode_attention(operator, self._kv_bytes))

    @property
    def chosen(self) -> Mapping[str, str]:
        """The source used, by operator."""
        return self._source.chosen

    def first_uses(self) -> FirstUses | None:
        """The kernels of a fresh engine; None if none is known to be compiled later."""
        if not self._kernels:
            return None
        return FirstUses(self._kernels, self.graphs, self._ran, self.host.terms.compile)

    def decode_line(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        """(a, b, kv_max): the GPU time of a decode-only step is a + b * kv seconds while kv is at most kv_max."""
        fixed = self._fixed.get(n)
        if fixed is None:
            tokens = n * self._width
            padded = self.graphs.padded(tokens, decode_only=True)
            rows = tokens if padded is None else padded
            fixed = self._fixed[n] = self._layers(tokens, rows) + self._head[n * self._sampled]
        a, b, kv_max = self._decode_attention(n, kv, longest)
        if self.power is None:
            return fixed + a, b, kv_max
        end, more_a, more_b = self._slowed_at(n, fixed, kv)
        return fixed + a + more_a, b + more_b, min(kv_max, end)

    def decode_host(self, n: int) -> tuple[float, float, float]:
        """Prepare, launch and tail of a decode-only step."""
        found = self._decode_host.get(n)
        if found is None:
            tokens = n * self._width
            padded = self.graphs.padded(tokens, decode_only=True)
            rows, how = tokens if padded is None else padded, self.graphs.launch(tokens, decode_only=True)
            found = self._decode_host[n] = self._host_part(rows, n, how, n * self._sampled)
        return found

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        """A step with n decodes and prefill chunks of (tokens, context before them)."""
        tokens = n * self._width + sum(chunk for chunk, _ in chunks)
        attention = self._mixed_attention(chunks, Decodes(n, kv, longest)) if n else self._prefill_seconds(chunks)
        requests, sampled = n + len(chunks), n * self._sampled + len(chunks)
        padded = self.graphs.padded(tokens, decode_only=False)
        rows = tokens if padded is None else padded
        fixed = self._layers(tokens, rows) + self._head[sampled]
        how = self.graphs.launch(tokens, decode_only=False)
        prepare, launch, tail = self._host_part(rows, requests, how, sampled)
        slowed = 0.0
        if self.power is not None:
            slowed = self.power.slowed(rows, sampled, (n, kv), chunks, fixed, attention, prepare + launch)
        hindered = HINDERED * launch if how == "eager" else 0.0
        return StepTime(fixed + attention + slowed, prepare, launch, tail, hindered, slowed)

    def together(self, batches: Sequence[RankBatch | None]) -> StepTime:
        """A step of all ranks, each with its batch or a dummy one (None).

        They wait for each other at every layer's experts, so the slowest rank decides. Either all of them replay a
        graph, padded to the largest, or none does.
        """
        if not any(batch.chunks for batch in batches if batch is not None):
            line = self.decodes_together([None if batch is None else batch[:3] for batch in batches])
            host = self.decodes_host([None if batch is None else batch.decodes for batch in batches])
            return StepTime(line.a + line.b * line.kv, *host)
        ranks = [batch or DUMMY for batch in batches]
        tokens = [batch.tokens + batch.decodes * (self._width - 1) for batch in ranks]
        how, rows = self._padded(tokens, [not batch.chunks for batch in ranks])
        own = 0.0
        for batch, mine, real in zip(ranks, rows, batches, strict=True):
            head = 0.0 if real is None else self._head[batch.requests + batch.decodes * (self._sampled - 1)]
            own = max(own, self._tokens[mine] + self._attention_seconds(batch) + head)
        gpu = own + self._shared(tokens, rows)
        prepare, launch, tail = self._host_part(max(rows), max(batch.requests for batch in batches if batch), how)
        return StepTime(gpu, prepare, launch, tail, HINDERED * launch if how == "eager" else 0.0)

    def decodes_together(self, ranks: Sequence[tuple[int, int, int] | None]) -> DecodeLine:
        """Decode steps of all ranks, each with (decodes, cached tokens, those of the longest) or a dummy batch.

        At least one rank has work, and a dummy batch is never the slowest.
        """
        counts = [1 if rank is None else rank[0] * self._width for rank in ranks]
        _, padded = self._padded_decodes(max(counts))
        rows = counts if padded is None else [padded] * len(counts)
        shared = self._shared(counts, rows)
        lines: list[tuple[float, float, DecodeLine]] = []
        for rank, mine in zip(ranks, rows, strict=True):
            if rank is None:
                continue
            n, kv, longest = rank
            a, b, kv_max = self._decode_attention(n, kv, longest)
            a += self._tokens[mine] + self._head[n * self._sampled] + shared
            lines.append((a + b * kv, b * n, DecodeLine(a, b, kv, n, (kv_max - kv) // n + 1)))
        slowest, climb, line = max(lines)
        steps = min(each.steps for _, _, each in lines)
        for value, steeper, _ in lines:
            if steeper > climb:  # it becomes the slowest after some steps
                steps = min(steps, int((slowest - value) / (steeper - climb)) + 1)
        return line._replace(steps=max(1, steps))

    def decodes_host(self, decodes: Sequence[int | None]) -> tuple[float, float, float]:
        """Prepare, launch and tail of a decode-only step of all ranks."""
        most = max(n or 0 for n in decodes)
        how, padded = self._padded_decodes(most * self._width)
        return self._host_part(padded or most * self._width, most, how, most * self._sampled)

    def _padded_decodes(self, most: int) -> tuple[Launch, int | None]:
        """How a decode-only step whose busiest rank has ``most`` tokens is launched, and the size all are padded to."""
        found = self._decode_graphs.get(most)
        if found is None:
            found = self.graphs.launch(most, decode_only=True), self.graphs.padded(most, decode_only=True)
            self._decode_graphs[most] = found
        return found

    def _padded(self, tokens: Sequence[int], decode_only: Sequence[bool]) -> tuple[Launch, list[int]]:
        """How a step of all ranks is launched, and the rows of each."""
        launches = [self.graphs.launch(*each) for each in zip(tokens, decode_only, strict=True)]
        how = min(launches, key=_BY_GRAPH.index)
        if how == "eager":
            return how, list(tokens)
        padded = max(self.graphs.padded(*each) or 0 for each in zip(tokens, decode_only, strict=True))
        return how, [padded] * len(tokens)

    def _layers(self, tokens: int, rows: int) -> float:
        """Layers of one rank without attention, if all ranks are equally busy: ``tokens``, padded to ``rows``."""
        return self._tokens[rows] + self._shared([tokens] * self.ranks, [rows] * self.ranks)

    def _shared(self, tokens: Sequence[int], rows: Sequence[int]) -> float:
        """Experts with dispatch and combine, for the tokens and rows of each rank."""
        pooled = sum(rows)
        return self._experts[(sum(tokens) + pooled) // 2] + self._pooled[pooled] + self._exchanged(rows)

    def _exchanged(self, rows: Sequence[int]) -> float:
        """Dispatch and combine of unequal rows: a broadcast from each rank, and a sum to each, in one launch.

        NCCL gives each as many of its channels as it has bytes. So the rows of all ranks count, however they are
        spread. A pair moves the rows that one rank has more than the other one way, which links do faster; that rank's
        alone take no longer than all.
        """
        fewest, most = min(rows), max(rows)
        if len(rows) != 2 or fewest == most:
            return self._exchange[sum(rows)]
        more = self._one_way[most - fewest + 1] - self._one_way[1]
        return max(self._exchange[2 * fewest] + more, self._one_way[most])

    def _attention_seconds(self, batch: RankBatch) -> float:
        chunks = list(batch.chunks)
        if chunks and batch.decodes:
            return self._mixed_attention(chunks, Decodes(*batch[:3]))
        if chunks:
            return self._prefill_seconds(chunks)
        a, b, _ = self._decode_attention(*batch[:3])
        return a + b * batch.kv

    def _host_part(self, rows: int, requests: int, how: Launch, sampled: int = 0) -> tuple[float, float, float]:
        """Prepare, launch and tail: the output head, and the last layer unless one graph holds all layers.

        The head has one row per request unless more are ``sampled``.
        """
        tail = self._head[sampled or requests]
        if how != "whole":
            tail += self._layers(rows, rows) / self.host.layers
        return self.host.prepare(requests), self.host.launch(how), tail

    def least(self) -> Floats:
        """The least GPU seconds of a step without attention, by the tokens of all ranks: however they are spread over
        the ranks, and however they are padded. Some rank has as many tokens as the mean."""
        tokens, experts, _, pooled, exchange, one_way = (_least_from(table.sum(axis=0)) for table in self._tables)
        everybody = np.arange(len(experts))
        own = tokens[np.minimum(-(-everybody // self.ranks), len(tokens) - 1)]
        together = own + experts + pooled
        if self.ranks == 1:
            return together
        return together + (np.minimum(exchange, one_way[-(-everybody // 2)]) if self.ranks == 2 else exchange)

    def least_decode_attention(self, n: int, kv: int) -> float:
        """The least seconds of attention of ``n`` decodes of a rank with ``kv`` cached tokens or more."""
        pieces = self._pieces_of(n)
        ends = [kv, *(int(end) for end, _, _ in pieces[:-1] if end > kv)]
        return max(0.0, min(a + b * at for at in ends for _, a, b in (_piece_at(pieces, at),)))

    def by_provenance(self, done: Stretches) -> Floats:
        """Approximate GPU seconds of a run by provenance.

        Padding is ignored, decodes have a stretch's mean length, and many prefills are sampled evenly.
        """
        tokens, head = self._by_provenance
        rows = done.decodes + done.prefill_requests
        found: Floats = (tokens[:, done.decodes + done.prefill_tokens] + head[:, rows]) @ done.steps.astype(np.float64)
        layers = sum(part.layers for part in self._attention)
        order = np.argsort(done.decodes, kind="stable")
        decodes, steps = done.decodes[order], done.steps[order]
        means = done.decode_keys[order] / steps
        sizes, firsts = np.unique(decodes, return_index=True)
        edges = [*firsts.tolist(), len(order)]
        for n, first, after in zip(sizes.tolist(), edges, edges[1:], strict=False):
            if not n or not layers:
                continue
            ends, a, b = (np.array(column) for column in zip(*self._pieces_of(n), strict=True))
            mean = means[first:after]
            piece = np.searchsorted(ends, mean)
            seconds = float(((a[piece] + b[piece] * mean) * steps[first:after]).sum())
            for part, kind in zip(self._attention, self._decode_kinds[n], strict=True):
                found[kind] += seconds * part.layers / layers
        filled = np.flatnonzero(done.prefill_tokens)
        sample = filled[:: max(1, len(filled) // _SAMPLED)]
        for new, pairs in zip(done.prefill_tokens[sample].tolist(), done.prefill_pairs[sample].tolist(), strict=True):
            before = max(0, (pairs - new * (new + 1) // 2) // new)
            for part in self._attention:
                seconds = part.layers * part.prefill.seconds([(new, before)])
                found[part.prefill.provenance] += seconds * len(filled) / len(sample)
        return found

    def by_family(self, done: Stretches, seconds: float) -> dict[str, float]:
        """Approximate GPU seconds of a run by kind of work. What the power limit adds counts as attention."""
        tokens, rows, steps = done.decodes + done.prefill_tokens, done.decodes + done.prefill_requests, done.steps
        plain, experts, head, pooled, exchange, _ = (table.sum(axis=0) for table in self._tables)
        everybody = tokens * self.ranks

        def spent(table: Floats, each: Ints) -> float:
            """In all steps; not by BLAS, whose last digits depend on how many threads it has."""
            return float((table[each] * steps).sum())

        collective, elementwise = (0.0 if each is None else spent(each, tokens) for each in self._beside)
        found = {
            "gemm": spent(plain, tokens) + spent(head, rows) - collective - elementwise,
            "experts": spent(experts, everybody) + spent(pooled, everybody),
            "communication": collective + spent(exchange, everybody),
            "elementwise": elementwise,
        }
        return {"attention": max(0.0, seconds - sum(found.values())), **found}

    def _mixed_attention(self, chunks: list[tuple[int, int]], decodes: Decodes) -> float:
        """Chunks and decodes in one kernel; the sum of both if the source only knows them apart."""
        seconds = 0.0
        for part in self._attention:
            together = part.prefill.together(chunks, decodes)
            if together is None:
                a, b, _ = self._decode_attention(*decodes)
                return self._prefill_seconds(chunks) + a + b * decodes.cached
            seconds += part.layers * together
        return seconds

    def _prefill_seconds(self, chunks: list[tuple[int, int]]) -> float:
        """Attention over a step's chunks. That of a single chunk is cached, since prompt lengths recur."""
        lone = chunks[0] if len(chunks) == 1 else None
        if lone is not None and lone in self._seen:
            return self._seen[lone]
        seconds = sum(part.layers * part.prefill.seconds(chunks) for part in self._attention)
        if lone is not None and len(self._seen) < _MOST_REMEMBERED:
            self._seen[lone] = seconds
        return seconds

    def _decode_attention(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        """(a, b, kv_max) of decode attention: an uneven batch lies between an even one and one of all the longest."""
        pieces = self._pieces.get(n) or self._pieces_of(n)
        kv_max, a, b = _piece_at(pieces, kv)
        skew = self._skew[n]
        more = n * longest - kv
        if not skew or not more:
            return a, b, kv_max
        longest_max, longest_a, longest_b = _piece_at(pieces, kv + more)
        a += skew * (longest_a + longest_b * more - a)
        b += skew * (longest_b - b)
        return a, b, min(kv_max, longest_max - more)

    def _slowed_at(self, n: int, fixed: float, kv: int) -> Piece:
        """What decode steps take longer under the GPU's power limit: the piece that ``kv`` lies in."""
        found = self._slowed.get(n)
        if found is None:
            found = self._slowed[n] = self._slowed_pieces(n, fixed)
        ends, pieces = found
        return pieces[bisect_left(ends, kv)]

    def _slowed_pieces(self, n: int, fixed: float) -> tuple[list[float], list[Piece]]:
        """Linear between two numbers of cached tokens an octave; pieces without a slow-down are one."""
        assert self.power is not None
        tokens = n * self._width
        rows = self.graphs.padded(tokens, decode_only=True) or tokens
        at = [0.0, *(n * 2.0 ** (half / 2) for half in _HALF_OCTAVES)]
        lines = [_piece_at(self._pieces_of(n), int(kv)) for kv in at]
        more = [
            self.power.slowed(rows, n * self._sampled, (n, kv), (), fixed, a + b * kv)
            for kv, (_, a, b) in zip(at, lines, strict=True)
        ]
        pieces: list[Piece] = []
        for i, end in enumerate([*at[1:-1], _NO_LIMIT]):
            slope = (more[i + 1] - more[i]) / (at[i + 1] - at[i])
            if pieces and pieces[-1][1:] == (0.0, 0.0) and more[i] == slope == 0.0:
                pieces.pop()
            pieces.append((int(end), more[i] - slope * at[i], slope))
        return [float(end) for end, _, _ in pieces], pieces

    def _pieces_of(self, n: int) -> tuple[Piece, ...]:
        pieces = self._pieces.get(n)
        if pieces is None:
            pieces = self._pieces[n] = self._decode_pieces(n)
        return pieces

    def _decode_pieces(self, n: int) -> tuple[Piece, ...]:
        """Decode attention of all layers: linear between the knots of the source's curves and the windows."""
        curves, layers_with_keys = [], 0
        knots = {0.0}
        for part in self._attention:
            curve, window = part.decode.curve(n), None
            if isinstance(part.operator, AttentionOperator):
                window = part.operator.window
                layers_with_keys += part.layers
            edge = float("inf") if window is None else float(n * window)
            curves.append((part.layers, curve, edge))
            knots |= {kv for kv in (*curve.kv, edge) if 0 < kv < min(edge, _NO_LIMIT) or kv == edge < _NO_LIMIT}
        at = np.array([*sorted(knots), 2 * max(knots) + 1024])
        seconds = np.zeros_like(at)
        for layers, curve, edge in curves:
            seconds += layers * curve.at(np.minimum(at, edge))
        self._decode_kinds[n] = tuple(curve.provenance for _, curve, _ in curves)
        self._skew[n] = sum(layers * curve.skew for layers, curve, _ in curves) / max(1, layers_with_keys)
        slopes = np.diff(seconds) / np.diff(at)
        ends = [*(int(knot) for knot in at[1:-1]), _NO_LIMIT]
        starts = zip(ends, at.tolist(), seconds.tolist(), slopes.tolist(), strict=False)
        return tuple((end, value - slope * knot, slope) for end, knot, value, slope in starts)


def _read_back(
    parts: dict[str, Any],
    chosen: dict[str, str],
    width: int,
    sampled: int,
    known: tuple[dict[int, tuple[Piece, ...]], dict[int, float], dict[int, tuple[int, ...]]],
) -> CompiledCost:
    source = FirstOf(())
    source.chosen = chosen
    cost = CompiledCost(**(parts | {"source": source}))
    cost._width, cost._sampled = width, sampled
    cost._pieces, cost._skew, cost._decode_kinds = known
    return cost


def _least_from(seconds: Floats) -> Floats:
    """For each place, the least value there or behind."""
    return np.asarray(np.minimum.accumulate(seconds[::-1])[::-1])


def _summed(table: Floats) -> list[float]:
    """Seconds of all provenances. Many tables are empty, and then all their entries are one object."""
    return table.sum(axis=0).tolist() if table.any() else [0.0] * table.shape[1]


def _piece_at(pieces: tuple[Piece, ...], kv: int) -> Piece:
    for piece in pieces:
        if kv <= piece[0]:
            return piece
    raise AssertionError("the last piece has no end")


def operator_is_per_sequence(operator: Gemm | GroupedGemm | Elementwise | Collective) -> bool:
    """Whether an operator runs on one row per request rather than on every token."""
    return not isinstance(operator, GroupedGemm) and operator.per == "sequence"
