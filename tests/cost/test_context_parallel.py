"""Decode context parallelism: cached tokens are split over GPUs that would have copies of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from steelyard.cost import CompiledCost, Roofline, compile_cost, plan_memory, work_of
from steelyard.cost.context_parallel import context_gather, exchange
from steelyard.errors import UserError
from steelyard.hardware import find_gpu
from steelyard.model import AttentionOperator, Elementwise, Layout, check_layout, load_model, operators
from steelyard.scenario import EngineSpec, scenario_from_dict
from steelyard.sim import simulate
from steelyard.sim.setup import set_up

GPU = find_gpu("h200")
ENGINE = EngineSpec(max_num_batched_tokens=2048, max_num_seqs=64)
LATENT, GROUPED = "deepseek-v3", "qwen2.5-3b"  # 128 heads of one latent; 16 heads and 2 KV heads


def attention_of(name: str, layout: Layout) -> AttentionOperator:
    model = load_model(name)
    return next(op for op in operators(model, model.layers[0], layout) if isinstance(op, AttentionOperator))


def compiled(name: str, dcp: int) -> CompiledCost:
    return compile_cost(load_model(name), Layout(tp=8, dcp=dcp), ENGINE, Roofline(GPU))


def decode_seconds(cost: CompiledCost, requests: int, cached: int) -> float:
    a, b, _ = cost.decode_line(requests, requests * cached, cached)
    return a + b * requests * cached


def scenario(**changes: Any) -> dict[str, Any]:
    return {
        "model": GROUPED,
        "fleet": {"gpu": "h200", "tp": 8, "dcp": 4},
        "engine": {"max_num_batched_tokens": 2048, "max_num_seqs": 64},
        "cost": {"source": "analytic"},
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 20},
            "requests": 60,
            "prompt": {"kind": "uniform", "min": 100, "max": 3000},
            "output": {"kind": "uniform", "min": 10, "max": 100},
        },
        **changes,
    }


def row_seconds(rows: int, *parts: Any) -> float:
    return sum(float(Roofline(GPU).rows(part, np.array([float(rows)])).seconds[0]) for part in parts)


# -- nothing changes without it ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [LATENT, GROUPED])
def test_one_rank_is_as_none(name: str) -> None:
    model, plain, one = load_model(name), Layout(tp=8), Layout(tp=8, dcp=1)
    assert all(operators(model, layer, plain) == operators(model, layer, one) for layer in model.layers)
    assert attention_of(name, one).context_parallel is None and str(one) == "tp=8"
    assert "query_gather" not in compiled(name, 1).chosen


def test_a_run_with_one_rank_is_as_without_the_key() -> None:
    plain = simulate(scenario_from_dict(scenario(fleet={"gpu": "h200", "tp": 8})))
    one = simulate(scenario_from_dict(scenario(fleet={"gpu": "h200", "tp": 8, "dcp": 1})))
    assert plain.summary == one.summary


# -- room ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dcp", "bytes_per_token"),
    [
        (LATENT, 8, 61 * (512 + 64) * 2),
        (LATENT, 2, 61 * (512 + 64) * 2),
        (GROUPED, 4, 36 * 2 * 128 * 2),  # one KV head on each GPU
        ("qwen3-30b-a3b", 2, 48 * 2 * 128 * 2),
    ],
)
def test_as_many_times_the_tokens_in_the_same_bytes(name: str, dcp: int, bytes_per_token: int) -> None:
    pools = [
        set_up(scenario_from_dict(scenario(model=name, fleet={"gpu": "h200", "tp": 8, "dcp": each}))).pools[0]
        for each in (1, dcp)
    ]
    plain, dealt = (pool.limits.blocks * pool.limits.block_size for pool in pools)
    assert dealt == dcp * plain
    assert pools[1].limits.block_size == 16 * dcp
    for pool in pools:
        assert pool.memory == plan_memory(load_model(name), GPU, Layout(tp=8), ENGINE)
    assert pools[1].memory.kv * dcp == dealt * bytes_per_token


def test_requests_that_would_not_fit_do() -> None:
    """Blocks for 1,600 tokens on each GPU: what needs more is turned away, or kept on four of them."""
    engine = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "num_gpu_blocks": 101}
    found = {}
    for dcp in (1, 4):
        data = scenario(engine=engine, fleet={"gpu": "h200", "tp": 8, "dcp": dcp})
        found[dcp] = simulate(scenario_from_dict(data)).summary.outcomes
    assert found[1].finished < 60 == found[4].finished


def test_hits_end_at_a_block_of_all_ranks() -> None:
    data = scenario()
    data["workload"] |= {"prompt": {"kind": "fixed", "tokens": 200}, "prefix": {"tokens": 120}, "requests": 2}
    data["workload"]["arrivals"] = {"kind": "constant", "rate": 1}
    hits = {}
    for dcp in (1, 4):
        data["fleet"] = {"gpu": "h200", "tp": 8, "dcp": dcp}
        hits[dcp] = simulate(scenario_from_dict(data)).requests["cached"].tolist()
    assert hits == {1: [0, 112], 4: [0, 64]}


# -- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dcp"), [(LATENT, 4), (GROUPED, 4), ("qwen3-30b-a3b", 2)])
def test_long_contexts_gain_and_short_ones_pay(name: str, dcp: int) -> None:
    plain, dealt = compiled(name, 1), compiled(name, dcp)
    assert decode_seconds(dealt, 16, 100_000) < decode_seconds(plain, 16, 100_000)
    assert decode_seconds(dealt, 16, 100) > decode_seconds(plain, 16, 100)


def test_each_gpu_reads_its_part() -> None:
    slopes = [compiled(GROUPED, dcp).decode_line(8, 8000, 1000)[1] for dcp in (1, 2, 4)]
    assert slopes == pytest.approx([slopes[0], slopes[0] / 2, slopes[0] / 4])
    model = load_model(LATENT)
    plain, dealt = (work_of(model, GPU, Layout(tp=8, dcp=dcp), "auto").attention[0] for dcp in (1, 8))
    assert dealt.kv_bytes == plain.kv_bytes / 8 and dealt.decode_pair == pytest.approx(plain.decode_pair)


def test_the_bytes_of_latent_attention() -> None:
    operator = attention_of(LATENT, Layout(tp=8, dcp=8))
    assert operator.context_parallel is not None and operator.decode.heads == 128 and operator.prefill.heads == 16
    queries, sums, correction, outputs = exchange(operator, operator.context_parallel)
    assert (queries.bytes, queries.kind) == (128 * 576 * 2, "allgather")
    assert (sums.bytes, sums.kind) == (8 * 128 * 4, "allgather")
    assert correction.bytes == 2 * 128 * 512 * 2 + 8 * 128 * 4
    assert (outputs.bytes, outputs.kind) == (128 * 512 * 2, "reducescatter")
    assert context_gather(operator, operator.context_parallel).bytes == 576 * 2


def test_the_bytes_of_grouped_queries() -> None:
    operator = attention_of(GROUPED, Layout(tp=8, dcp=4))
    assert operator.context_parallel is not None and operator.decode.heads == 2 * 4
    queries, sums, _, outputs, own, merge = exchange(operator, operator.context_parallel)
    assert (queries.bytes, sums.bytes, outputs.bytes) == (8 * 128 * 2, 4 * 8 * 4, 8 * 128 * 2)
    assert own.bytes == (2 + 2 + 1 + 1) * 128 * 2 and merge.bytes == 3 * 2 * 128 * 2
    assert {each.ranks for each in (queries, sums, outputs) if not isinstance(each, Elementwise)} == {4}


@pytest.mark.parametrize(("name", "layers"), [(LATENT, 61), (GROUPED, 36)])
def test_a_decode_step_pays_for_one_exchange_in_each_layer(name: str, layers: int) -> None:
    plain, dealt = compiled(name, 1), compiled(name, 4)
    operator = attention_of(name, Layout(tp=8, dcp=4))
    assert operator.context_parallel is not None
    writes = [
        next(op for op in operators(load_model(name), load_model(name).layers[0], layout) if op.name == "kv_write")
        for layout in (Layout(tp=8), Layout(tp=8, dcp=4))
    ]
    more = row_seconds(16, *exchange(operator, operator.context_parallel), writes[1]) - row_seconds(16, writes[0])
    found = dealt.decode_line(16, 16, 1)[0] - plain.decode_line(16, 16, 1)[0]
    assert found == pytest.approx(layers * more)


def test_chunks_of_latent_attention_gather_their_context() -> None:
    plain, dealt = compiled(LATENT, 1), compiled(LATENT, 4)
    operator = attention_of(LATENT, Layout(tp=8, dcp=4))
    assert operator.context_parallel is not None
    first = dealt.mixed(0, 0, 0, [(1024, 0)]).gpu - plain.mixed(0, 0, 0, [(1024, 0)]).gpu
    later = dealt.mixed(0, 0, 0, [(1024, 8192)]).gpu - plain.mixed(0, 0, 0, [(1024, 8192)]).gpu
    assert later - first == pytest.approx(61 * row_seconds(8192, context_gather(operator, operator.context_parallel)))


def test_chunks_and_decodes_of_grouped_queries_share_an_exchange() -> None:
    plain, dealt = compiled(GROUPED, 1), compiled(GROUPED, 4)
    operator = attention_of(GROUPED, Layout(tp=8, dcp=4))
    assert operator.context_parallel is not None
    one_exchange = 36 * row_seconds(512, *exchange(operator, operator.context_parallel))

    def more(decodes: int, cached: int, *chunks: tuple[int, int]) -> float:
        batch = decodes, decodes * cached, cached, list(chunks)
        return dealt.mixed(*batch).gpu - plain.mixed(*batch).gpu

    fresh = more(0, 0, (512, 0))  # no token of it sees a cached one
    assert more(0, 0, (512, 1)) - fresh == pytest.approx(one_exchange)
    less_read = 8000 * (dealt.decode_line(8, 8000, 1000)[1] - plain.decode_line(8, 8000, 1000)[1])
    assert more(8, 1000, (504, 0)) - fresh == pytest.approx(one_exchange + less_read)
    assert more(8, 1000, (252, 0), (252, 70)) - fresh == pytest.approx(one_exchange + less_read)


# -- refusals ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layout", "why"),
    [
        ("qwen3-30b-a3b", Layout(tp=8, dcp=4), "tp=8 dcp=4 .*each of 4 KV heads is on 2 GPUs, .* dcp can be 1, 2$"),
        ("llama-3.1-8b", Layout(tp=8, dcp=2), "each of 8 KV heads is on 1 GPU, no multiple of 2; dcp can be 1$"),
        (LATENT, Layout(tp=8, dcp=3), "the latent is on 8 GPUs, no multiple of 3; dcp can be 1, 2, 4, 8$"),
        ("gpt-oss-20b", Layout(tp=16, dcp=2), "window of 128 tokens cannot split them; dcp can be 1$"),
        (LATENT, Layout(tp=8, dcp=0), "it must be at least 1; dcp can be 1, 2, 4, 8$"),
    ],
)
def test_layouts_that_cannot_be(name: str, layout: Layout, why: str) -> None:
    with pytest.raises(UserError, match=why):
        check_layout(load_model(name), layout)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"fleet": {"gpu": "h200", "tp": 8, "dcp": 4, "pp": 2}}, "dcp: 4 is not .* together with pp: 2"),
        (
            {"model": "qwen3-30b-a3b", "fleet": {"gpu": "h200", "tp": 8, "dcp": 2, "dp": 2, "expert_parallel": True}},
            "dcp: 2 is not .* together with dp: 2",
        ),
        ({"engine": {"speculative": {"method": "ngram", "num_tokens": 2, "acceptance": [1]}}}, "together with drafts"),
        ({"engine": {"scheduler": "sarathi"}}, "together with scheduler: sarathi"),
        ({"engine": {"tiers": [{"kind": "host", "size": "10GB", "bandwidth": "20GB"}]}}, "together with tiers"),
        (
            {"fleet": {"pools": [{"role": "prefill", "gpu": "h200"}, {"role": "decode", "gpu": "h200", "dcp": 2}]}},
            "dcp.*only pools of role serve",
        ),
    ],
)
def test_what_does_not_go_with_it(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        set_up(scenario_from_dict(scenario(**changes)))
