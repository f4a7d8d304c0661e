"""Operator times of one model on one GPU as tables, which is what profilers of other simulators write.

The readers (`llmservingsim`, `vidur`) know the files. This module interpolates between their points: linearly,
monotonically, and over the quantity that determines the time. Rows within a tile of a matrix cost as much as the tile.
A prompt chunk longer than any measured one counts as several in a row, with as many query-key pairs. Decodes of one
batch share the memory bandwidth, so batches between two measured sizes are compared at the same total of cached tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from steelyard.cost.interpolate import monotone
from steelyard.cost.source import EXTRAPOLATED, INTERPOLATED, MEASURED, Curve, Decodes, Estimate, Floats, RowOperator
from steelyard.model import AttentionOperator, Gemm, GroupedGemm

TILE_ROWS = 16  # of a matrix; no tensor core works on fewer
GAP_SECONDS = 0.6e-6  # between two kernels, which profilers leave out: 0.53 to 0.68 in graphs of matrices on an H200


@dataclass(frozen=True)
class TimeCurve:
    """Measured seconds over one dimension.

    Constant before the first point. Beyond the last, the slope is that of the upper half, since a single step of a
    staircase says little about it.
    """

    x: tuple[float, ...]
    seconds: tuple[float, ...]

    @classmethod
    def of(cls, measured: Iterable[tuple[float, float]]) -> TimeCurve:
        """From measured points: repeated ones are averaged, and so are neighbours that are not monotone."""
        table = np.array(sorted(measured), dtype=np.float64)
        x = np.unique(table[:, 0])
        seconds = monotone(np.array([table[table[:, 0] == value, 1].mean() for value in x]))
        return cls(tuple(x.tolist()), tuple(seconds.tolist()))

    def at(self, x: float) -> float:
        """Seconds at ``x``."""
        if x > self.x[-1]:
            return self.seconds[-1] + (x - self.x[-1]) * self._climb
        i = bisect_left(self.x, x)
        if i == 0 or self.x[i] == x:
            return self.seconds[i]
        part = (x - self.x[i - 1]) / (self.x[i] - self.x[i - 1])
        return self.seconds[i - 1] + part * (self.seconds[i] - self.seconds[i - 1])

    def along(self, x: Floats, tile: int = 0) -> Estimate:
        """Seconds at many places; between points no further apart than ``tile``, those of the next point."""
        knots, seconds = np.array(self.x), np.array(self.seconds)
        above = np.minimum(np.searchsorted(knots, x), len(knots) - 1)
        narrow = knots[above] - knots[np.maximum(above - 1, 0)] <= tile
        inside = np.where(narrow, seconds[above], np.interp(x, knots, seconds))
        beyond = seconds[-1] + (x - knots[-1]) * self._climb
        provenance = np.where(knots[above] == x, MEASURED, np.where(x > knots[-1], EXTRAPOLATED, INTERPOLATED))
        found = np.where(x > knots[-1], beyond, inside)
        return Estimate(np.where(x > 0, found, 0.0), provenance.astype(np.int8))

    @cached_property
    def _climb(self) -> float:
        base = max(self.x[0], self.x[-1] / 2)
        return (self.seconds[-1] - self.at(base)) / (self.x[-1] - base) if base < self.x[-1] else 0.0


def blend(keys: Sequence[int], at: float) -> tuple[tuple[int, float], ...]:
    """The measured keys on both sides of ``at`` and their weights; beyond the last, the last two extrapolated."""
    if at <= keys[0] or len(keys) == 1:
        return ((keys[0], 1.0),)
    i = min(bisect_left(keys, at), len(keys) - 1)
    if keys[i] == at:
        return ((keys[i], 1.0),)
    part = (at - keys[i - 1]) / (keys[i] - keys[i - 1])
    return (keys[i - 1], 1.0 - part), (keys[i], part)


def _nearest(measured: Iterable[int], at: int) -> int:
    """The measured key at or above ``at``, or the last."""
    keys = sorted(measured)
    return keys[min(bisect_left(keys, at), len(keys) - 1)]


@dataclass(frozen=True)
class TabulatedAttention:
    """One layer's attention: of decodes, of a single prompt chunk, and of both in one kernel if that was measured."""

    decodes: dict[int, TimeCurve]  # by requests: over the cached tokens of all of them
    chunks: dict[int, TimeCurve]  # by new tokens: over the tokens cached before them
    mixed: dict[
        int, dict[int, dict[int, TimeCurve]]
    ]  # by new tokens, cached before, decodes: over cached tokens of each
    skew: dict[int, dict[int, float]]  # by new tokens beside the decodes (0: none), requests: see Curve

    def even(self, requests: int, kv: float) -> float:
        """Decodes alone, all of one length."""
        counts = self._counts
        if requests > counts[-1]:
            grow = requests / counts[-1]
            return grow * self.decodes[counts[-1]].at(kv / grow)
        return sum(weight * self.decodes[n].at(kv) for n, weight in blend(counts, requests))

    def curve(self, requests: int) -> Curve:
        """The same over all cached tokens."""
        counts = self._counts
        if requests > counts[-1]:
            grow, provenance = requests / counts[-1], EXTRAPOLATED
            knots = [kv * grow for kv in self.decodes[counts[-1]].x]
        else:
            grow, provenance = 1.0, MEASURED if requests in self.decodes else INTERPOLATED
            knots = sorted({kv for n, _ in blend(counts, requests) for kv in self.decodes[n].x})
        seconds = tuple(self.even(requests, kv) for kv in knots)
        return Curve(tuple(knots), seconds, provenance, self.skew_of(requests))

    def skew_of(self, requests: int, tokens: int = 0) -> float:
        """The skew, at most 1. A straggler takes as long in any batch, so its weight falls as the batch grows."""
        if not self.skew or requests < 2:
            return 0.0
        by_requests = self.skew[_nearest(self.skew, tokens)]
        measured = _nearest(by_requests, requests)
        return min(1.0, by_requests[measured] * measured / requests)

    def chunk(self, tokens: int, before: int) -> float:
        """A single chunk; one longer than any measured is several in a row."""
        longest = self._lengths[-1]
        seconds = 0.0
        while tokens > longest:
            seconds += self._measured_chunk(longest, before) - self.start
            tokens, before = tokens - longest, before + longest
        return seconds + self._measured_chunk(tokens, before)

    def _measured_chunk(self, tokens: int, before: int) -> float:
        return sum(weight * self.chunks[c].at(before) for c, weight in blend(self._lengths, tokens))

    def together(self, tokens: int, before: int, requests: int, kv: float) -> float:
        """A chunk and even decodes in one kernel; the sum of both if that was not measured."""
        if not self.mixed:
            return self.chunk(tokens, before) + self.even(requests, kv) - self.start
        each = kv / requests
        lengths = [c for c, least in self._reaching.items() if least <= each] or list(self._reaching)
        within = min(tokens, lengths[-1])
        seconds = 0.0
        for length, share in blend(lengths, within):
            contexts = self.mixed[length]
            for context, part in blend(sorted(contexts), before):
                decodes = contexts[context]
                seconds += share * part * sum(w * decodes[n].at(each) for n, w in blend(sorted(decodes), requests))
        if tokens > within:
            seconds += self.chunk(tokens - within, before + within) - self.start
        return seconds

    @cached_property
    def start(self) -> float:
        """The least time of an attention kernel."""
        return min(points.seconds[0] for points in self.chunks.values())

    @cached_property
    def _counts(self) -> list[int]:
        return sorted(self.decodes)

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted(self.chunks)

    @cached_property
    def _reaching(self) -> dict[int, float]:
        """By new tokens, the fewest cached tokens of a decode measured with them: grids may start differently."""
        return {
            length: max(points.x[0] for decodes in self.mixed[length].values() for points in decodes.values())
            for length in sorted(self.mixed)
        }


@dataclass(frozen=True)
class TabulatedPrefill:
    """Prompt chunks of a step.

    A kernel may handle decodes beside prompts differently from decodes alone: without splitting their keys over blocks,
    or reading them once per head. So times measured together are used together, and so is the skew of uneven decodes:
    beside a prompt a straggler's keys are not split.
    """

    times: TabulatedAttention
    provenance: int = INTERPOLATED

    def seconds(self, chunks: Sequence[tuple[int, int]]) -> float:
        longest, *others = sorted(chunks, reverse=True)
        return self.times.chunk(*longest) + self._more(others) + GAP_SECONDS

    def together(self, chunks: Sequence[tuple[int, int]], decodes: Decodes) -> float:
        """The longest chunk with the decodes, as measured; other chunks add their time less a kernel's start."""
        times, (requests, cached, most) = self.times, decodes
        longest, *others = sorted(chunks, reverse=True)
        seconds = times.together(*longest, requests, cached)
        skew = times.skew_of(requests, longest[0])
        if skew:
            seconds += skew * (times.together(*longest, requests, requests * most) - seconds)
        return seconds + self._more(others) + GAP_SECONDS

    def _more(self, chunks: Sequence[tuple[int, int]]) -> float:
        return sum(max(0.0, self.times.chunk(*chunk) - self.times.start) for chunk in chunks)


@dataclass(frozen=True)
class ExpertTimes:
    """Routed experts as a whole: by tokens, over the number of experts that any token chose."""

    by_tokens: dict[int, TimeCurve]

    def along(self, gemm: GroupedGemm, rows: Floats) -> Estimate:
        """Seconds of the busiest GPU: those of equally many choices and experts in the table."""
        tokens = sorted(self.by_tokens)
        counts = gemm.visits(rows) / gemm.top_k
        seconds = np.zeros_like(rows)
        for i, (count, experts) in enumerate(zip(counts.tolist(), gemm.touched(rows).tolist(), strict=True)):
            if count > 0:
                seconds[i] = sum(weight * self.by_tokens[t].at(experts) for t, weight in blend(tokens, count))
        provenance = np.where(counts > tokens[-1], EXTRAPOLATED, INTERPOLATED)
        return Estimate(np.maximum.accumulate(seconds), provenance.astype(np.int8))


@dataclass(frozen=True)
class TabulatedDecodes:
    """Decodes from a table, with the gap after each kernel."""

    attention: TabulatedAttention

    def curve(self, requests: int) -> Curve:
        alone = self.attention.curve(requests)
        return replace(alone, seconds=tuple(second + GAP_SECONDS for second in alone.seconds))


@dataclass(frozen=True)
class Tabulated:
    """A source that knows the operators of one model, in the precision it was profiled in."""

    name: str
    operators: dict[str, TimeCurve]  # by our name: over rows
    inside_others: frozenset[str]  # operators that were timed as part of another
    attention: TabulatedAttention
    experts: ExpertTimes | None = None
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0

    def rows(self, operator: RowOperator, rows: Floats) -> Estimate | None:
        if operator.name in self.inside_others:
            return Estimate.all_of(np.zeros_like(rows), MEASURED)
        if isinstance(operator, Gemm | GroupedGemm) and operator.weight_bytes != self.weight_bytes:
            return None
        if isinstance(operator, GroupedGemm) and not operator.gated:
            return None
        if isinstance(operator, GroupedGemm) and self.experts is not None:
            found = self.experts.along(operator, rows)
        elif operator.name in self.operators:
            found = self.operators[operator.name].along(rows, TILE_ROWS if isinstance(operator, Gemm) else 0)
        else:
            return None
        return found._replace(seconds=np.where(rows > 0, found.seconds + GAP_SECONDS, 0.0))

    def decode_attention(self, operator: AttentionOperator, kv_bytes: float) -> TabulatedDecodes | None:
        return TabulatedDecodes(self.attention) if self._knows(operator, kv_bytes) else None

    def prefill_attention(self, operator: AttentionOperator, kv_bytes: float) -> TabulatedPrefill | None:
        return TabulatedPrefill(self.attention) if self._knows(operator, kv_bytes) else None

    def _knows(self, operator: AttentionOperator, kv_bytes: float) -> bool:
        """Whether the table applies: it only has full attention, for one kind of layer."""
        plain = operator.attention == "gqa" and operator.window is None and operator.context_parallel is None
        return plain and kv_bytes == self.kv_bytes
