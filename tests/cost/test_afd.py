"""Attention and FFN apart: the longest way against a simulation of each micro-batch at each station of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from steelyard.cost import CompiledCost, FirstOf, Roofline, StepTime, compile_cost, graph_plan
from steelyard.cost.afd import ATTENTION, BACK, AfdCost, AfdUnit, LayerCost, LayerRound, Line, MicroBatchPipeline
from steelyard.cost.compiled import AttentionLayers, operator_is_per_sequence
from steelyard.cost.host import NO_HOST, HostCost, HostTerms
from steelyard.engine import Engine, Limits, Request
from steelyard.engine.step_cost import StepCost
from steelyard.hardware import find_gpu
from steelyard.model import (
    AttentionOperator,
    Layer,
    ModelSpec,
    Recurrence,
    head_operators,
    kv_dtype_bytes,
    load_model,
    operators,
)
from steelyard.scenario import EngineSpec
from support.engine_worlds import settled

NO_LIMIT = 1 << 60


# -- the slow reference -----------------------------------------------------------------------------------------------


class Station:
    """Takes micro-batches in order of layer and number, one at a time or all that are there."""

    def __init__(self, order: list[tuple[int, int]], one_at_a_time: bool) -> None:
        self.order = order
        self.one_at_a_time = one_at_a_time
        self.here: set[tuple[int, int]] = set()
        self.busy = False

    def next(self) -> tuple[int, int] | None:
        """The micro-batches that may start now."""
        if not self.one_at_a_time:
            return self.here.pop() if self.here else None
        if self.busy or not self.order or self.order[0] not in self.here:
            return None
        self.busy = True
        self.here.remove(self.order[0])
        return self.order.pop(0)


def simulated(
    pipeline: MicroBatchPipeline, rounds: Sequence[LayerRound], kv: float = 0.0
) -> tuple[float, float, float]:
    """Every event of a step: when all is done, and the seconds that attention and FFN side worked."""
    layers = [each for each in rounds for _ in range(each.layers)]
    order = [(layer, i) for layer in range(len(layers)) for i in range(pipeline.micro_batches)]
    stations = [Station(list(order), pipeline.one_at_a_time or station in (0, 2)) for station in range(4)]
    stations[ATTENTION].here = {(0, i) for i in range(pipeline.micro_batches)}
    events: list[tuple[float, int, tuple[int, int]]] = []
    now, worked = 0.0, [0.0] * 4
    while True:
        for number, station in enumerate(stations):
            while (begins := station.next()) is not None:
                each = layers[begins[0]]
                takes = (each.attention + each.slope * kv, each.send, each.ffn, each.back)[number]
                worked[number] += takes
                heappush(events, (now + takes, number, begins))
        if not events:
            return now, worked[0], worked[2]
        now, number, (layer, i) = heappop(events)
        stations[number].busy = False
        if number != BACK:
            stations[number + 1].here.add((layer, i))
        elif layer + 1 < len(layers):
            stations[ATTENTION].here.add((layer + 1, i))


SECONDS = st.one_of(st.sampled_from([0.0, 0.0, 1.0, 2.0, 5.0, 9.0]), st.floats(0, 10))  # whole ones for ties
ROUNDS = st.lists(
    st.builds(LayerRound, st.integers(1, 9), SECONDS, SECONDS, SECONDS, SECONDS, SECONDS), min_size=1, max_size=4
)
PIPELINES = st.builds(MicroBatchPipeline, st.integers(1, 4), st.booleans())


@settled(300)
@example(MicroBatchPipeline(4), [LayerRound(2, 1, 1, 0, 5), LayerRound(3, 2, 1, 5, 1), LayerRound(4, 9, 1, 2, 1)], 0.0)
@given(PIPELINES, ROUNDS, st.sampled_from([0.0, 1.0, 2.5]))
def test_the_longest_way_is_how_long_it_takes(
    pipeline: MicroBatchPipeline, rounds: list[LayerRound], kv: float
) -> None:
    seconds, attention, ffn = simulated(pipeline, rounds, kv)
    assert pipeline.seconds(rounds, kv) == pytest.approx(seconds, rel=1e-12, abs=0)
    stalls = pipeline.stalls(rounds, kv)
    assert stalls.attention * seconds == pytest.approx(seconds - attention, abs=1e-11 * seconds)
    assert stalls.ffn * seconds == pytest.approx(seconds - ffn, abs=1e-11 * seconds)


@settled(100)
@given(PIPELINES, st.builds(LayerRound, st.integers(1, 100), SECONDS, SECONDS, SECONDS, SECONDS, st.just(0.0)))
def test_layers_alike_have_a_closed_form(pipeline: MicroBatchPipeline, each: LayerRound) -> None:
    trip = each.attention + each.send + each.ffn + each.back
    slowest = max(each[1:5]) if pipeline.one_at_a_time else max(each.attention, each.ffn)
    many = pipeline.micro_batches
    expected = trip + (many - 1) * slowest + (each.layers - 1) * max(trip, many * slowest)
    assert pipeline.seconds([each]) == pytest.approx(expected, rel=1e-12)
    cut = [replace_layers(each, 1), replace_layers(each, each.layers - 1)] if each.layers > 1 else [each]
    assert pipeline.seconds(cut) == pytest.approx(expected, rel=1e-12)


def replace_layers(each: LayerRound, layers: int) -> LayerRound:
    return each._replace(layers=layers)


def test_two_micro_batches_by_hand() -> None:
    """Attention 2, ways 1, FFN 3, two layers: the FFN works from 3 to 9, and from 10, when it gets the first again."""
    assert MicroBatchPipeline(2).seconds([LayerRound(2, 2.0, 1.0, 3.0, 1.0)]) == 17.0
    assert MicroBatchPipeline(2).stalls([LayerRound(2, 2.0, 1.0, 3.0, 1.0)]) == pytest.approx((9 / 17, 5 / 17))
    assert MicroBatchPipeline(1).seconds([LayerRound(2, 2.0, 1.0, 3.0, 1.0)]) == 14.0


@settled(120)
@given(PIPELINES, ROUNDS)
def test_pieces_are_lines_to_their_ends_and_not_beyond(pipeline: MicroBatchPipeline, rounds: list[LayerRound]) -> None:
    pieces = pipeline.pieces(rounds, 100)
    ends, bases, slopes = (np.array(column) for column in zip(*pieces, strict=True))
    assert ends[-1] == 100 and (np.diff(ends) >= 0).all() and (np.diff(slopes) > 0).all()
    for at in {0, *ends.tolist(), *(ends[1:] + 1).clip(max=100).tolist(), 37, 80}:
        piece = int(np.searchsorted(ends, at))
        expected = simulated(pipeline, rounds, at)[0]
        assert bases[piece] + slopes[piece] * at == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert (bases + slopes * at <= expected * (1 + 1e-12) + 1e-12).all()


def test_a_piece_ends_where_attention_becomes_the_slowest() -> None:
    """By hand: an FFN of 10, attention of kv / 4, free ways, two micro-batches: attention takes over at 40."""
    rounds = [LayerRound(5, 0.0, 0.0, 10.0, 0.0, slope=0.25)]
    assert MicroBatchPipeline(2).pieces(rounds, 999) == [(40, 100.0, 0.25), (999, 10.0, 2.5)]
    assert MicroBatchPipeline(2).pieces(rounds, 30) == [(30, 100.0, 0.25)]


# -- limits -----------------------------------------------------------------------------------------------------------


@settled(60)
@given(ROUNDS, st.booleans())
def test_one_micro_batch_without_ways_is_the_sum_of_layers(rounds: list[LayerRound], one_at_a_time: bool) -> None:
    together = [each._replace(send=0.0, back=0.0) for each in rounds]
    expected = sum(each.layers * (each.attention + each.ffn) for each in rounds)
    assert MicroBatchPipeline(1, one_at_a_time).seconds(together) == pytest.approx(expected, rel=1e-12)


@settled(100)
@given(ROUNDS, st.booleans())
def test_more_micro_batches_are_never_slower_without_overheads(rounds: list[LayerRound], one_at_a_time: bool) -> None:
    seconds = [
        MicroBatchPipeline(many, one_at_a_time).seconds(
            [LayerRound(each.layers, *(time / many for time in each[1:5])) for each in rounds]
        )
        for many in (1, 2, 3)
    ]
    assert seconds[2] * (1 - 1e-12) <= seconds[1] <= seconds[0] * (1 + 1e-12)


@settled(60)
@given(PIPELINES, ROUNDS)
def test_an_endlessly_fast_ffn_leaves_attention(pipeline: MicroBatchPipeline, rounds: list[LayerRound]) -> None:
    alone = [LayerRound(each.layers, each.attention, 0.0, 0.0, 0.0) for each in rounds]
    expected = pipeline.micro_batches * sum(each.layers * each.attention for each in rounds)
    assert pipeline.seconds(alone) == pytest.approx(expected, rel=1e-12)


# -- as the engine asks -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attention:
    """In line with requests and cached tokens, twice as steep beyond the knee."""

    knee: int = NO_LIMIT
    skew: float = 0.0

    def decode_line(self, n: int, kv: int, longest: int) -> Line:
        a = 0.1 * n + 0.01 * self.skew * (n * longest - kv)
        return (a, 0.01, self.knee) if kv <= self.knee else (a - 0.01 * self.knee, 0.02, NO_LIMIT)

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        a, b, _ = self.decode_line(n, kv, longest)
        return StepTime(a + b * kv + sum(chunk * (0.2 + 0.01 * before) for chunk, before in chunks), 9.0, 9.0, 9.0)


def layer(count: int, ffn: float = 0.5, attention: Attention | None = None) -> LayerCost:
    return LayerCost(count, attention or Attention(), lambda tokens: max(ffn, 0.125 * tokens))


def unit(
    instances: int = 1, many: int = 2, way: float = 0.25, second: LayerCost | None = None, host: HostTerms = NO_HOST
) -> AfdUnit:
    return AfdUnit(
        instances,
        MicroBatchPipeline(many),
        [layer(2, ffn=1.5), second or layer(6)],
        send=lambda tokens, _: way * tokens,
        back=lambda tokens, _: way * tokens,
        head=lambda tokens, requests: 0.01 * requests,
        host=HostCost(host, 8, 6),
    )


@settled(150)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(0, 300), st.sampled_from([0.0, 0.25]))
def test_a_decode_step_is_its_fullest_micro_batch_through_all_layers(
    instances: int, many: int, n: int, kv: int, way: float
) -> None:
    world = unit(instances, many, way, layer(6, attention=Attention(knee=30)))
    cost: StepCost = AfdCost(world)
    a, b, kv_max = cost.decode_line(n, kv, kv)
    on_one = -(-n // instances)
    micro = min(many, on_one)
    decodes, rows = -(-on_one // micro), -(-n // micro)
    for at in {kv, (kv + min(kv_max, 2000)) // 2, min(kv_max, 2000)}:
        rounds = []
        for each in world.layers:
            base, slope, _ = each.attention.decode_line(decodes, at * decodes // n, at)
            attention = base + slope * at * decodes / n
            rounds.append(LayerRound(each.layers, attention, way * rows, each.ffn(rows), way * rows))
        expected = simulated(MicroBatchPipeline(micro), rounds)[0] + 0.01 * on_one
        assert a + b * at == pytest.approx(expected, rel=1e-12)
    assert AfdCost(world).decode_line(n, min(kv_max, 2000), kv) == (a, b, kv_max)


def test_one_instance_one_micro_batch_and_no_ways_is_a_co_located_engine() -> None:
    world = unit(1, 1, 0.0)
    a, b, _ = AfdCost(world).decode_line(12, 40, 10)
    ffn = 2 * 1.5 + 6 * 1.5
    assert a + b * 40 == pytest.approx(8 * (1.2 + 0.4) + ffn + 0.12, rel=1e-12)
    assert b == pytest.approx(0.08)
    mixed = AfdCost(world).mixed(12, 40, 10, [(20, 5), (3, 0)])
    prompts = 8 * (20 * 0.25 + 3 * 0.2)
    assert mixed.gpu == pytest.approx(8 * 1.6 + prompts + 8 * 0.125 * 35 + 0.14, rel=1e-12)


def test_prompts_are_cut_into_micro_batches() -> None:
    """By hand: a chunk of 8 in halves of 4 with 2 before the second's middle; 2 decodes on each of 2 instances."""
    world = replace(unit(2, 2, 0.0), layers=[layer(1)])
    time = AfdCost(world).mixed(4, 100, 30, [(8, 0), (2, 0)])
    attention = 0.1 + 0.01 * 25 + 4 * (0.2 + 0.01 * 2)
    ffn = 0.125 * 7
    assert time.gpu == pytest.approx(attention + ffn + max(attention, ffn) + 0.03)
    assert AfdCost(world).mixed(0, 0, 0, [(1, 0)]).gpu == pytest.approx(0.2 + 0.5 + 0.01)


def test_the_host_works_for_one_instance() -> None:
    terms = replace(NO_HOST, step=1.0, request=0.1, sample=0.5, eager=2.0, experts=3.0)
    cost = AfdCost(unit(2, 2, host=terms))
    assert cost.decode_host(9) == pytest.approx((1.5, 0.5, 0.05))
    time = cost.mixed(9, 40, 10, [(4, 0)])
    assert time[1:4] == pytest.approx((1.6, 2 * 2.0 + 6 * 3.0 + 0.5, 0.06))


def test_stalls_of_a_step() -> None:
    """Two layers of an FFN that takes 1.5 and six that take 0.5, against attention of 0.1 + 0.01 * 10 in each."""
    stalls = AfdCost(unit(1, 2, 0.0)).stalls(2, 20, 10)
    seconds = 0.2 + 4 * 1.5 + 12 * 0.5
    assert stalls.attention == pytest.approx(1 - 16 * 0.2 / seconds)
    assert stalls.ffn == pytest.approx(0.2 / seconds)


@settled(25)
@given(st.integers(1, 3), st.integers(1, 3), st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60)), max_size=8))
def test_an_engine_gives_the_same_bits_step_by_step(instances: int, many: int, lengths: list[tuple[int, int]]) -> None:
    ends = []
    for plain in (False, True):
        limits = Limits(64, 128, block_size=8, max_num_seqs=6)
        engine = Engine(
            limits, AfdCost(unit(instances, many, second=layer(6, attention=Attention(30, skew=0.3)))), plain=plain
        )
        for i, (prompt, output) in enumerate(lengths):
            engine.submit(Request(i, 0.0, prompt, output), 0.0)
        engine.advance(float("inf"))
        ends.append(np.array(engine.log.ends))
    assert np.array_equal(ends[0], ends[1])


# -- a real model -----------------------------------------------------------------------------------------------------

ENGINE = EngineSpec(max_num_batched_tokens=256, max_num_seqs=80, enforce_eager=True)


def sides(model: ModelSpec, layer: Layer, source: FirstOf, host: HostCost) -> LayerCost:
    """A layer cut where its FFN's norm begins, each side from the tables of a co-located engine."""
    rows = np.arange(ENGINE.max_num_batched_tokens + 1, dtype=np.float64)
    tables = np.zeros((2, len(rows)))
    side, attention = 0, []
    for operator in operators(model, layer):
        side = side or int(operator.name in ("post_norm", "pre_ffn_norm"))
        if isinstance(operator, AttentionOperator):
            size = kv_dtype_bytes(model, "auto")
            prefill, decode = source.prefill_attention(operator, size), source.decode_attention(operator, size)
            attention.append(AttentionLayers(operator, 1, prefill, decode))
        elif not isinstance(operator, Recurrence):
            tables[side] += source.rows(operator, rows).seconds
    near = CompiledCost(
        token_seconds=tables[:1],
        expert_seconds=np.zeros_like(tables[:1]),
        head_seconds=np.zeros((1, ENGINE.max_num_seqs + 1)),
        attention=tuple(attention),
        source=source,
        kv_bytes=kv_dtype_bytes(model, "auto"),
        families={},
        graphs=graph_plan(ENGINE),
        host=host,
    )
    return LayerCost(layer.count, near, tables[1].tolist().__getitem__)


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "gemma-3-4b", "llama-3.1-8b"])
def test_a_model_in_one_piece_takes_as_long_as_co_located(name: str) -> None:
    """Dense layers before experts, windows among full attention, and one kind of layer."""
    model = load_model(name)
    roofline = Roofline(find_gpu("h200"))
    source, host = FirstOf((roofline,)), HostCost(NO_HOST, model.num_layers, 0)
    whole = compile_cost(model, 1, ENGINE, roofline, terms=NO_HOST)
    layers = [sides(model, layer, source, host) for layer in model.layers]

    def head(tokens: int, requests: int) -> float:
        seconds = 0.0
        for operator in head_operators(model):
            assert not isinstance(operator, AttentionOperator | Recurrence)
            rows = requests if operator_is_per_sequence(operator) else tokens
            seconds += source.rows(operator, np.array([float(rows)])).seconds[0]
        return seconds

    apart = AfdCost(AfdUnit(1, MicroBatchPipeline(1), layers, lambda *_: 0.0, lambda *_: 0.0, head, host))
    for n, kv in [(1, 100), (7, 7000), (64, 64 * 4096), (64, 64 * 4097)]:
        (a, b, _), (mine, slope, _) = whole.decode_line(n, kv, kv // n), apart.decode_line(n, kv, kv // n)
        assert mine + slope * kv == pytest.approx(a + b * kv, rel=1e-12)
        chunks = [(50, 0), (20, 1000)]
        expected = whole.mixed(n, kv, kv // n, chunks).gpu
        assert apart.mixed(n, kv, kv // n, chunks).gpu == pytest.approx(expected, rel=1e-12)
