"""Attention/FFN disaggregation (AFD): how long a step takes whose micro-batches alternate between the two sides.

In each layer a micro-batch passes four stations: attention, the transfer to the FFN side, the FFN, and the transfer
back. Then it enters the next layer. Attention and FFN process one micro-batch at a time, in order; so do links that
carry one message at a time per direction. All micro-batches are alike, so a step takes as long as the longest path
through the grid of stations and micro-batches. For a round trip of R, a slowest station of t, m micro-batches and L
equal layers that is

    R + (m - 1) t + (L - 1) max(R, m t)

since a path either follows a micro-batch through a whole round or waits at the slowest station. Where kinds of layers
follow each other, the same holds between any two points within one kind (`_Segment`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol

from steelyard.cost.host import HostCost, Launch
from steelyard.cost.step import StepTime

ATTENTION, SEND, FFN, BACK = range(4)
_STATIONS = range(4)
_MOST_CACHED = 1 << 36  # tokens: more than any unit holds, and few enough for the precision of seconds
_ROUNDING = 1e-13  # relative difference of sums of doubles that counts as none

Line = tuple[float, float, int]  # (a, b, kv_max): a + b * kv seconds while kv is at most kv_max
Piece = tuple[int, float, float]  # (kv_max, a, b)


class LayerRound(NamedTuple):
    """Seconds of one micro-batch at the stations of one layer, and the number of consecutive layers of this kind.

    Attention takes ``attention + slope * kv``, where ``kv`` are the cached tokens of the whole step.
    """

    layers: int
    attention: float
    send: float
    ffn: float
    back: float
    slope: float = 0.0


# A path through the grid: its seconds at a given kv, what another cached token adds, and its seconds at kv = 0. Tuples
# compare by length first, then by growth.
_Way = tuple[float, float, float]
_START: _Way = (0.0, 0.0, 0.0)


@dataclass(frozen=True)
class MicroBatchPipeline:
    """How micro-batches alternate between the sides: their number, and whether a link carries one message at a time."""

    micro_batches: int
    one_at_a_time: bool = True

    def seconds(self, rounds: Sequence[LayerRound], kv: float = 0.0) -> float:
        """Seconds from the first attention to the last return."""
        return self._longest_way(rounds, kv)[0]

    def pieces(self, rounds: Sequence[LayerRound], kv_max: float) -> list[Piece]:
        """The same for all kv up to kv_max, as pieces: the upper envelope of many lines."""
        left, right = self._longest_way(rounds, 0.0), self._longest_way(rounds, kv_max)
        found = [*self._crossings(rounds, left, right), (kv_max, right)]
        return [(int(end), base, slope) for end, (_, slope, base) in found]

    def _crossings(self, rounds: Sequence[LayerRound], left: _Way, right: _Way) -> Iterator[tuple[float, _Way]]:
        """(end, path) of the pieces from the left one to the right one; a third line may lie above their crossing."""
        (_, left_slope, left_base), (_, right_slope, right_base) = left, right
        if not left_slope < right_slope:
            return
        at = (left_base - right_base) / (right_slope - left_slope)
        way = self._longest_way(rounds, at)
        seconds, slope, _ = way
        if left_slope < slope < right_slope and seconds - (left_base + left_slope * at) > _ROUNDING * seconds:
            yield from self._crossings(rounds, left, way)
            yield from self._crossings(rounds, way, right)
        else:
            yield at, left

    def _longest_way(self, rounds: Sequence[LayerRound], kv: float) -> _Way:
        """The longest path, which determines when a step ends, segment by segment."""
        many = self.micro_batches
        serial = _STATIONS if self.one_at_a_time else (ATTENTION, FFN)
        points = [*((station, 0) for station in serial), *((ATTENTION, i) for i in range(many))]
        reached = [(ATTENTION, 0, _START)]
        for number, each in enumerate(rounds):
            segment = _Segment(each, many, serial, kv)
            last = many * each.layers - 1
            if number == len(rounds) - 1:
                return max(segment.way(*source, BACK, last) for source in reached)
            ends = [*((station, last) for station in serial), *((BACK, last - i) for i in reversed(range(many)))]
            found = (max(segment.way(*source, *end) for source in reached) for end in ends)
            reached = [(*point, way) for point, way in zip(points, found, strict=True)]
        return _START

    def stalls(self, rounds: Sequence[LayerRound], kv: float = 0.0) -> Stalls:
        """Shares of the step in which the two sides wait: for each other, for links, at its start and end."""
        seconds = self.seconds(rounds, kv)
        many = self.micro_batches
        attention = sum(many * each.layers * (each.attention + each.slope * kv) for each in rounds)
        ffn = sum(many * each.layers * each.ffn for each in rounds)
        return Stalls(1 - attention / seconds, 1 - ffn / seconds) if seconds else Stalls(0.0, 0.0)


class Stalls(NamedTuple):
    """Shares of a step during which a side has nothing to do."""

    attention: float
    ffn: float


class _Segment:
    """Paths through layers of one kind: a grid of four stations by micro-batches, numbered through all layers.

    A path continues to the next station; or, at a serial station, to the next micro-batch; or from the last station to
    the first of the next layer, which adds the number of micro-batches to its own. Each whole layer through which it
    follows one micro-batch adds and saves the same, so only the fewest and the most such layers are compared. (If the
    slowest station is not passed when following none, waiting there with one or two would be longer; but then waiting
    there once more and continuing to the next kind of layers is longer still.)
    """

    __slots__ = ("attention", "many", "passed", "slope", "slowest", "times")

    def __init__(self, each: LayerRound, many: int, serial: Sequence[int], kv: float) -> None:
        self.many = many
        self.attention, self.slope = each.attention, each.slope
        self.times = times = each.attention + each.slope * kv, each.send, each.ffn, each.back
        self.passed = 0.0, 0.0, each.send, each.send + each.ffn, each.send + each.ffn + each.back  # besides attention
        self.slowest: list[list[int]] = []  # from one station to another: the slowest serial one
        for first in _STATIONS:
            found, slowest = [first] * 4, -1
            for station in serial:
                if station >= first and (slowest < 0 or times[station] > times[slowest]):
                    slowest = station
                    found[station:] = [station] * (4 - station)
            self.slowest.append(found)

    def way(self, station: int, number: int, so_far: _Way, to: int, last: int) -> _Way:
        """The longest path from before one point of the grid to behind another."""
        times, passed, slowest, many = self.times, self.passed, self.slowest, self.many
        ahead = last - number
        ways: list[tuple[int, float, int, int]] = []  # attentions, other stations, turns to wait and where
        if station <= to and ahead >= 0:
            ways.append((station == ATTENTION, passed[to + 1] - passed[station], ahead, slowest[station][to]))
        rounds = ahead // many
        if rounds > 0:  # to the end of a layer, then from the start of another, with no whole layer between or all
            attentions = 1 + (station == ATTENTION)
            others = passed[-1] - passed[station] + passed[to + 1]
            after, before = slowest[station][BACK], slowest[ATTENTION][to]
            ways.append((attentions, others, ahead - many, before if times[before] >= times[after] else after))
            if rounds > 1:
                others += (rounds - 1) * passed[-1]
                ways.append((attentions + rounds - 1, others, ahead - rounds * many, slowest[ATTENTION][BACK]))
        longest, passes, rest = -inf, 0, -inf
        for attentions, others, turns, where in ways:
            if where == ATTENTION:
                attentions += turns
            else:
                others += turns * times[where]
            seconds = others + attentions * times[ATTENTION]
            if seconds > longest or (seconds == longest and attentions > passes):
                longest, passes, rest = seconds, attentions, others
        seconds, slope, base = so_far
        return seconds + longest, slope + passes * self.slope, base + (rest + passes * self.attention)


class AttentionSide(Protocol):
    """One layer on one attention instance with its share of a micro-batch: everything before the transfer.

    The methods are those of `StepCost`, so the tables of a co-located engine can answer them.
    """

    def decode_line(self, n: int, kv: int, longest: int) -> Line:
        """(a, b, kv_max) of ``n`` decodes with ``kv`` cached tokens."""
        ...

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        """The same with prefill chunks; only the GPU time counts."""
        ...


@dataclass(frozen=True)
class LayerCost:
    """One kind of layer on both sides, and the number of consecutive layers."""

    layers: int
    attention: AttentionSide
    ffn: Callable[[int], float]  # by tokens of a micro-batch, from all attention instances together


def _whole_decodes(_tokens: int, decode_only: bool) -> Launch:
    return "whole" if decode_only else "eager"


@dataclass(frozen=True)
class AfdUnit:
    """Attention instances, each with its share of the requests and their KV cache, and the FFN side that they share."""

    instances: int
    pipeline: MicroBatchPipeline
    layers: Sequence[LayerCost]
    send: Callable[[int, int], float]  # seconds by a micro-batch's tokens and those of the fullest instance
    back: Callable[[int, int], float]
    head: Callable[[int, int], float]  # embedding and output head, by tokens and requests of one attention instance
    host: HostCost
    launch: Callable[[int, bool], Launch] = _whole_decodes  # by a micro-batch's tokens, and whether it only decodes


class AfdCost:
    """The `StepCost` of a unit.

    Requests are spread evenly over instances and micro-batches; all micro-batches take as long as the fullest one.
    """

    def __init__(self, unit: AfdUnit) -> None:
        self._unit = unit
        self._last: dict[
            int, tuple[list[Line], list[Piece]]
        ] = {}  # by batch size: lines of attention, pieces of the step

    def decode_line(self, n: int, kv: int, longest: int) -> Line:
        """(a, b, kv_max): the GPU time of a decode-only step is a + b * kv seconds while kv is at most kv_max."""
        lines = self._attention(n, kv, longest)
        last = self._last.get(n)
        if last is None or last[0] != lines:
            pipeline, rounds = self._decode_rounds(n, lines)
            pieces = pipeline.pieces(rounds, min(kv_max for _, _, kv_max in lines))
            last = self._last[n] = lines, pieces
        kv_max, a, b = next(piece for piece in last[1] if kv <= piece[0])
        on_one = self._on_one(n)
        return a + self._unit.head(on_one, on_one), b, kv_max

    def decode_host(self, n: int) -> tuple[float, float, float]:
        """Prepare, launch and tail of a decode-only step on one attention instance."""
        host, requests = self._unit.host, self._on_one(n)
        how = self._unit.launch(-(-requests // self._micro_batches(n)), True)
        return host.prepare(requests), host.launch(how), self._unit.head(requests, requests)

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        """A step with n decodes and prefill chunks of (tokens, context before them).

        Chunks are assigned to the instances in turn and split into micro-batches: a part's keys and values are written
        before the next part's attention in the same layer. All parts take as long as the middle one.
        """
        unit = self._unit
        tokens = n + sum(chunk for chunk, _ in chunks)
        decodes = self._on_one(n)
        micro = min(unit.pipeline.micro_batches, max(decodes, *(chunk for chunk, _ in chunks)))
        by_instance = [chunks[i :: unit.instances] for i in range(min(unit.instances, len(chunks)))]
        parts = [[_middle(chunk, before, micro) for chunk, before in each] for each in by_instance]
        share, rows = -(-decodes // micro), -(-tokens // micro)
        most = share + max(sum(chunk for chunk, _ in each) for each in parts)
        cached = kv * share // n if n else 0
        send, back = unit.send(rows, most), unit.back(rows, most)
        rounds = []
        for layer in unit.layers:
            attention = max(layer.attention.mixed(share, cached, longest, each).gpu for each in parts)
            rounds.append(LayerRound(layer.layers, attention, send, layer.ffn(rows), back))
        requests = decodes + max(len(each) for each in parts)
        head = unit.head(decodes + max(sum(chunk for chunk, _ in each) for each in by_instance), requests)
        seconds = MicroBatchPipeline(micro, unit.pipeline.one_at_a_time).seconds(rounds)
        launch = unit.host.launch(unit.launch(most, False))
        return StepTime(seconds + head, unit.host.prepare(requests), launch, head)

    def least(self, tokens: int) -> float:
        """The least GPU seconds of a step with this many tokens or more: the FFN side's work, one part at a time."""
        most = self._unit.pipeline.micro_batches
        return min(
            sum(layer.layers * parts * layer.ffn(-(-tokens // parts)) for layer in self._unit.layers)
            for parts in range(1, most + 1)
        )

    def stalls(self, n: int, kv: int, longest: int) -> Stalls:
        """Shares of a decode-only step in which each side waits."""
        pipeline, rounds = self._decode_rounds(n, self._attention(n, kv, longest))
        return pipeline.stalls(rounds, kv)

    def _on_one(self, n: int) -> int:
        """Requests on the fullest attention instance."""
        return -(-n // self._unit.instances)

    def _micro_batches(self, n: int) -> int:
        return min(self._unit.pipeline.micro_batches, self._on_one(n))

    def _attention(self, n: int, kv: int, longest: int) -> list[Line]:
        """Attention of each kind of layer as lines over the cached tokens of the whole step.

        An instance's share is rounded to a token, so that it grows by one token per request and step like the whole.
        """
        decodes = -(-self._on_one(n) // self._micro_batches(n))
        found = []
        for layer in self._unit.layers:
            a, b, kv_max = layer.attention.decode_line(decodes, kv * decodes // n, longest)
            found.append((a, b * decodes / n, min(((kv_max + 1) * n - 1) // decodes, _MOST_CACHED)))
        return found

    def _decode_rounds(self, n: int, lines: list[Line]) -> tuple[MicroBatchPipeline, list[LayerRound]]:
        unit, micro = self._unit, self._micro_batches(n)
        rows, most = -(-n // micro), -(-self._on_one(n) // micro)
        send, back = unit.send(rows, most), unit.back(rows, most)
        rounds = [
            LayerRound(layer.layers, a, send, layer.ffn(rows), back, b)
            for layer, (a, b, _) in zip(unit.layers, lines, strict=True)
        ]
        return MicroBatchPipeline(micro, unit.pipeline.one_at_a_time), rounds


def _middle(chunk: int, before: int, parts: int) -> tuple[int, int]:
    """The middle one of a chunk's parts."""
    part = -(-chunk // parts)
    return part, before + (chunk - part) // 2
