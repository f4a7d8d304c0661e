"""Layouts: which are possible, what each GPU then holds and runs, and who has most to do at the experts."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.cost import Roofline, Stretches, compile_cost, compile_stages, plan_memory, work_of
from steelyard.errors import UserError
from steelyard.hardware import find_gpu
from steelyard.model import (
    Collective,
    GroupedGemm,
    Layout,
    MoeFfn,
    Routing,
    check_layout,
    kv_bytes_per_token,
    layers_of_stages,
    load_model,
    operators,
    place_experts,
    rank_load,
    stage_weight_bytes,
    stages,
    weight_bytes,
)
from steelyard.model.weights import ffn_matrices
from steelyard.scenario import EngineSpec

MOE = "qwen3-30b-a3b"
ENGINE = EngineSpec(max_num_batched_tokens=512, max_num_seqs=64)
GPU = find_gpu("h200")


# -- which layouts are possible ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "layout", "why"),
    [
        ("llama-3.1-8b", Layout(tp=3), "tp=3 does not fit llama-3.1-8b: 32 attention heads .*; tp can be 1, 2, 4, 8"),
        ("llama-3.1-8b", Layout(pp=40), "32 layers cannot be divided over 40 stages; pp can be 1, 2, 3, .*, 32$"),
        ("llama-3.1-8b", Layout(dp=2), "it has none, so they are replicas; dp can be 1$"),
        ("llama-3.1-8b", Layout(tp=2, expert_parallel=True), "no routed experts .*; no dp would do"),
        (
            "mixtral-8x7b",
            Layout(dp=16, expert_parallel=True),
            "8 experts .* over 16 ranks .* dp can be 1, 2, 3, 4, 5, 6, 7, 8$",
        ),
        (MOE, Layout(tp=2, dp=2, redundant_experts=4), "4 redundant experts need expert_parallel"),
        (
            MOE,
            Layout(dp=8, expert_parallel=True, redundant_experts=4),
            "132 experts, .* evenly over 8 ranks; dp can be .*4",
        ),
        (MOE, Layout(dp=5), "the expert width 768 cannot be split 5 ways; dp can be 1, 2, 3, 4, 6, 8"),
        (MOE, Layout(dp=0), "it must be at least 1"),
    ],
)
def test_an_impossible_layout_is_refused_with_what_would_work(name: str, layout: Layout, why: str) -> None:
    with pytest.raises(UserError, match=why):
        check_layout(load_model(name), layout)


def test_dealt_out_experts_need_not_be_divisible() -> None:
    """vLLM gives the first ranks one more."""
    model = load_model(MOE)
    check_layout(model, Layout(dp=5, expert_parallel=True))
    sizes = [len(own) for own in place_experts(np.full(128, 1 / 128), 5)]
    assert sizes == [26, 26, 26, 25, 25] and sum(sizes) == 128


def test_said_in_few_words() -> None:
    assert str(Layout()) == "tp=1"
    assert str(Layout(tp=4, dp=2, expert_parallel=True)) == "tp=4 dp=2 expert_parallel"
    assert Layout(tp=4, dp=2, pp=3).gpus == 24


# -- what GPUs hold --------------------------------------------------------------------------------------------------


def expert_bytes(name: str) -> int:
    model = load_model(name)
    found = 0
    for layer in model.layers:
        if isinstance(layer.ffn, MoeFfn):
            experts = [m for m in ffn_matrices(model, layer.ffn) if m.part == "experts"]
            found += layer.count * sum(m.elements for m in experts) * 2
    return found


@pytest.mark.parametrize("name", [MOE, "mixtral-8x7b", "qwen2-57b-a14b"])
@pytest.mark.parametrize("expert_parallel", [True, False])
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=12)
def test_experts_are_there_once_and_the_rest_on_every_data_parallel_rank(
    name: str, expert_parallel: bool, tp: int, dp: int
) -> None:
    model, layout = load_model(name), Layout(tp=tp, dp=dp, expert_parallel=expert_parallel)
    try:
        check_layout(model, layout)
    except UserError:
        return
    experts, alone = expert_bytes(name), weight_bytes(model, tp=tp)
    rest_of_one_rank = tp * alone - experts
    assert layout.gpus * weight_bytes(model, tp=layout) == experts + dp * rest_of_one_rank


def test_redundant_experts_take_the_room_of_an_expert_each() -> None:
    model, layout = load_model(MOE), Layout(dp=8, expert_parallel=True)
    more = replace(layout, redundant_experts=16)
    one = expert_bytes(MOE) // 128
    assert weight_bytes(model, tp=more) - weight_bytes(model, tp=layout) == 2 * one


@pytest.mark.parametrize(
    ("layers", "pp", "expected"),
    [
        (32, 4, (8, 8, 8, 8)),
        (61, 4, (15, 15, 16, 15)),
        (62, 4, (15, 16, 16, 15)),
        (63, 4, (16, 16, 16, 15)),
        (5, 2, (3, 2)),
    ],
)
def test_layers_over_stages_by_vllms_rule(layers: int, pp: int, expected: tuple[int, ...]) -> None:
    assert layers_of_stages(layers, pp) == expected


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.2-1b", "deepseek-v2-lite", "gpt-oss-20b", "gemma-3-4b", MOE])
@pytest.mark.parametrize("pp", [2, 3, 4])
def test_stages_hold_the_model_between_them(name: str, pp: int) -> None:
    model, layout = load_model(name), Layout(pp=pp)
    parts = stages(model, layout)
    assert sum(stage.model.num_layers for stage in parts) == model.num_layers
    table = -(-model.vocab // 64) * 64 * model.hidden * 2
    second_copy = table if model.tied_embeddings else 0
    assert sum(stage_weight_bytes(stage, layout) for stage in parts) == weight_bytes(model) + second_copy
    assert sum(kv_bytes_per_token(stage.model) for stage in parts) == kv_bytes_per_token(model)
    assert [stage.first for stage in parts] == [True, *[False] * (pp - 1)]


def test_dense_layers_come_first_and_windows_take_turns() -> None:
    first, *_ = stages(load_model("deepseek-v2-lite"), Layout(pp=3))
    assert [type(layer.ffn).__name__ for layer in first.model.layers] == ["DenseFfn", "MoeFfn"]
    for stage in stages(load_model("gpt-oss-20b"), Layout(pp=4)):
        assert {attention.window: layers for attention, layers in stage.model.attentions} == {128: 3, None: 3}


def test_memory_is_planned_for_the_tightest_stage() -> None:
    model = load_model("llama-3.1-70b")
    whole = plan_memory(model, GPU, Layout(tp=2), ENGINE)
    piped = plan_memory(model, GPU, Layout(tp=2, pp=2), ENGINE)
    assert piped.blocks > 2 * whole.blocks and piped.block_bytes == whole.block_bytes // 2
    assert piped.weights < 0.51 * whole.weights
    spread = plan_memory(load_model(MOE), GPU, Layout(dp=4, expert_parallel=True), ENGINE)
    assert spread.weights < 0.35 * plan_memory(load_model(MOE), GPU, 1, ENGINE).weights


# -- who has most to do ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("routing", [Routing(), Routing(exponent=0.8), Routing(loads=tuple(range(1, 65)))])
@pytest.mark.parametrize("ranks", [2, 8, 16])
def test_the_busiest_rank_has_what_a_draw_of_tokens_gives_it(routing: Routing, ranks: int) -> None:
    experts, top_k = 64, 6
    load, chances = rank_load(routing, experts, top_k, ranks), routing.chances(experts, top_k)
    assert load is not None and chances.sum() == pytest.approx(top_k) and chances.max() <= 1
    rng = np.random.default_rng(7)
    pace = -np.log1p(-np.minimum(chances, 1 - 1e-9))
    for tokens in (1, 8, 64, 512):
        visits, touched = [], []
        for _ in range(60):
            drawn = np.argpartition(rng.exponential(size=(tokens, experts)) / pace, top_k - 1, axis=1)[:, :top_k]
            counts = np.bincount(drawn.ravel(), minlength=experts).reshape(ranks, -1)
            visits.append(counts.sum(axis=1).max())
            touched.append(np.count_nonzero(counts, axis=1).max())
        at = np.array([float(tokens)])
        assert load.visits(at)[0] == pytest.approx(np.mean(visits), rel=0.15 if tokens < 8 else 0.05)
        assert load.touched(at)[0] == pytest.approx(np.mean(touched), rel=0.15 if tokens < 8 else 0.08)


def test_even_routing_on_one_rank_needs_no_table() -> None:
    assert rank_load(Routing(), 128, 8, 1) is None
    load = rank_load(Routing(exponent=1e-9), 128, 8, 1)
    assert load is not None
    rows = np.array([0.0, 1, 7, 300])
    gemm = GroupedGemm("experts_gate_up", 2048, 1536, 128, 8, 2.0, "bf16")
    assert load.visits(rows) == pytest.approx(gemm.visits(rows)) and load.touched(rows) == pytest.approx(
        gemm.touched(rows)
    )


@given(st.floats(0.3, 1.5), st.sampled_from([4, 8, 16]))
@settings(max_examples=20)
def test_redundant_copies_of_the_heaviest_even_the_ranks_out(exponent: float, ranks: int) -> None:
    routing, at = Routing(exponent=exponent), np.array([4096.0])
    found = []
    for redundant in (0, ranks, 4 * ranks):
        load = rank_load(routing, 128, 8, ranks, redundant)
        assert load is not None
        found.append(float(load.visits(at)[0]))
        placed = place_experts(routing.shares(128), ranks, redundant)
        copies = [i for own in placed for i, _ in own]
        assert set(copies) == set(range(128)) and len(copies) == 128 + redundant
        assert sum(part for own in placed for _, part in own) == pytest.approx(128)
        assert {len(own) for own in placed} == {(128 + redundant) // ranks}
    mean = 4096 * 8 / ranks
    assert found[0] >= 0.99 * found[1] and found[1] >= 0.99 * found[2] and found[2] >= mean
    assert found[2] < 1.06 * mean


def test_loads_must_fit_the_model() -> None:
    with pytest.raises(UserError, match=re.escape("128 numbers of at least 0 (found 3)")):
        rank_load(Routing(loads=(1.0, 2.0, 3.0)), 128, 8, 2)
    with pytest.raises(UserError, match="chooses 8 experts, but fewer are ever chosen"):
        rank_load(Routing(loads=(1.0, *[0.0] * 127)), 128, 8, 2)


# -- what GPUs run ---------------------------------------------------------------------------------------------------


def collectives(layout: Layout) -> list[tuple[str, str, int, str]]:
    model = load_model(MOE)
    found = operators(model, model.layers[0], layout)
    return [(op.name, op.kind, op.ranks, op.per) for op in found if isinstance(op, Collective)]


def test_tokens_get_to_their_experts_as_vllm_takes_them() -> None:
    reduce = ("attention_allreduce", "allreduce", 2, "token")
    gathered = [("dispatch", "allgather", 2, "pooled"), ("combine", "reducescatter", 2, "pooled")]
    assert collectives(Layout(tp=2, expert_parallel=True)) == [reduce, ("ffn_allreduce", "allreduce", 2, "token")]
    assert collectives(Layout(dp=2, expert_parallel=True)) == gathered
    assert collectives(Layout(dp=2)) == gathered
    assert collectives(Layout(tp=2, dp=2)) == [reduce, *gathered, ("ffn_allreduce", "allreduce", 2, "token")]
    over_all = [("dispatch", "allgather", 4, "pooled"), ("combine", "reducescatter", 4, "pooled")]
    spread = Layout(tp=2, dp=2, expert_parallel=True)
    assert collectives(spread) == [reduce, *over_all, ("ffn_allgather", "allgather", 2, "token")]
    sent = [("dispatch", "alltoall", 4, "token"), ("combine", "alltoall", 4, "token")]
    low_latency = replace(spread, all2all="deepep_low_latency")
    assert collectives(low_latency) == [reduce, *sent, ("ffn_allgather", "allgather", 2, "token")]


@given(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (1, 4)]), st.booleans(), st.integers(1, 400))
@settings(max_examples=20)
def test_the_work_of_all_gpus_is_the_models(degrees: tuple[int, int], expert_parallel: bool, tokens: int) -> None:
    """Arithmetic at the peak: each rank's tokens, over all GPUs, whichever way the experts lie."""
    model, (tp, dp) = load_model(MOE), degrees
    layout = Layout(tp=tp, dp=dp, expert_parallel=expert_parallel)
    one, nothing = np.array([1]), np.array([0])
    done = Stretches(one, nothing, nothing, np.array([tokens]), one, nothing)
    alone = work_of(model, GPU, 1, "auto").seconds_at_peak(done)
    router = model.hidden * 128 * 2 * tokens * 48 / GPU.peak("bf16")  # whole on every GPU
    each = work_of(model, GPU, layout, "auto").seconds_at_peak(done)
    assert tp * each == pytest.approx(alone + (tp - 1) * router, rel=1e-9)


@pytest.mark.parametrize("mode", ["full_and_piecewise", "none"])
def test_degrees_of_one_change_nothing(mode: str) -> None:
    """EP = 1 is the plain model, PP = 1 no pipeline, DP = 1 a lone engine."""
    model, source = load_model(MOE), Roofline(GPU)
    engine = ENGINE.model_copy(update={"cudagraph": mode})
    plain = compile_cost(model, 1, engine, source)
    layouts = [Layout(), Layout(expert_parallel=True), Layout(dp=1, expert_parallel=True, all2all="deepep_low_latency")]
    for layout in layouts:
        found = compile_cost(model, layout, engine, source)
        for n in (1, 17, 64):
            assert found.decode_line(n, 100 * n, 100) == plain.decode_line(n, 100 * n, 100)
            assert found.mixed(n - 1, 100 * n, 100, [(200, 50)]) == plain.mixed(n - 1, 100 * n, 100, [(200, 50)])
    (stage,) = compile_stages(model, Layout(), engine, source)
    assert stage.decode_line(9, 900, 100) == plain.decode_line(9, 900, 100)
    assert weight_bytes(model, tp=Layout(expert_parallel=True)) == weight_bytes(model)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v2-lite", "gpt-oss-20b"])
@pytest.mark.parametrize("pp", [2, 3])
def test_a_batch_passes_all_stages_in_the_time_of_the_whole(name: str, pp: int) -> None:
    model, source, layout = load_model(name), Roofline(GPU), Layout(pp=pp)
    parts = compile_stages(model, layout, ENGINE, source)
    whole, alone = compile_cost(model, layout, ENGINE, source), compile_cost(model, 1, ENGINE, source)
    for n, chunks in ((0, [(300, 0)]), (20, [(100, 50)]), (20, [])):

        def seconds(cost: object, n: int = n, chunks: list[tuple[int, int]] = chunks) -> float:
            assert isinstance(cost, type(whole))
            if chunks:
                return cost.mixed(n, n * 500, 500, chunks).gpu
            a, b, _ = cost.decode_line(n, n * 500, 500)
            return a + b * n * 500

        assert sum(map(seconds, parts)) == pytest.approx(seconds(whole), rel=1e-9)
        assert seconds(whole) > seconds(alone), "sends between stages come on top"
        assert seconds(whole) < 1.2 * seconds(alone)


def test_spread_experts_read_less_on_each_gpu() -> None:
    model, source = load_model(MOE), Roofline(GPU)
    alone = compile_cost(model, 1, ENGINE, source)
    spread = compile_cost(model, Layout(dp=4, expert_parallel=True), ENGINE, source)
    a, b, _ = alone.decode_line(64, 6400, 100)
    c, d, _ = spread.decode_line(64, 6400, 100)
    assert c + d * 6400 < 0.6 * (a + b * 6400)
    skewed = compile_cost(model, Layout(dp=4, expert_parallel=True), ENGINE, source, routing=Routing(exponent=1.0))
    assert skewed.mixed(0, 0, 0, [(512, 0)]).gpu > spread.mixed(0, 0, 0, [(512, 0)]).gpu
