"""Layers that keep a window only: vLLM's own decisions replayed, and what must hold of any such engine."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.cost import plan_memory
from steelyard.engine import Limits
from steelyard.engine.kv_groups import KVGroups
from steelyard.errors import UserError
from steelyard.hardware import find_gpu
from steelyard.model import Layout, kv_bytes_per_token, load_model
from steelyard.scenario import EngineSpec, scenario_from_dict
from steelyard.sim import simulate
from steelyard.validate.parity import LinearCost, compare, read_golden
from support.engine_worlds import (
    Ask,
    Run,
    World,
    assert_same_records,
    crowds,
    serve,
    settled,
    vectorised_from,
    vllm,
    worlds,
)
from support.paths import DATA

GOLDENS = list(read_golden(DATA / "vllm-0.32-hybrid-decisions.jsonl.gz"))
EVERYTHING = 1 << 20  # a window that no request outgrows
WINDOWS = st.sampled_from([2, 3, 5, 8, 17, 40])


@st.composite
def windowed(draw: st.DrawFn, some: st.SearchStrategy[World]) -> World:
    """A world whose engine has groups of layers with windows, and blocks that are scarce with them too."""
    world = draw(some)
    one, other = draw(WINDOWS), draw(WINDOWS)
    windows = draw(
        st.sampled_from([(one,), (one, None), (None, one), (one, one, None), (None, one, other), (one, None, None)])
    )
    limits = replace(world.limits, windows=windows, blocks=1 << 30)
    need = max(_blocks(limits, ask) for ask in world.asks)
    return replace(
        world, limits=replace(limits, blocks=need + draw(st.sampled_from([0, 0, 1, 3, need // 2, 3 * need])))
    )


def _blocks(limits: Limits, ask: Ask) -> int:
    """What a request could take at most."""
    tokens = min(ask.prompt + ask.output - 1 + limits.speculative_tokens, limits.max_model_len)
    return sum(min(-(-tokens // limits.block_size), limits.most_blocks(window)) for window in limits.windows)


ANY_WORLD = windowed(st.one_of(worlds(), worlds(), worlds(speculation=True), crowds()))


# -- vLLM's own decisions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])
@pytest.mark.parametrize("golden", GOLDENS, ids=[golden["name"] for golden in GOLDENS])
def test_every_decision_is_the_engines_own(golden: dict[str, Any], plain: bool) -> None:
    assert compare(golden, plain=plain).difference is None


def test_the_goldens_cover_what_they_should() -> None:
    for key in ("async_scheduling", "enable_prefix_caching", "scheduler_reserve_full_isl", "enable_chunked_prefill"):
        assert {golden["config"][key] for golden in GOLDENS} == {True, False}, key
    kinds = Counter((len(set(golden["kv_groups"])), None in golden["kv_groups"]) for golden in GOLDENS)
    assert kinds[1, False] and kinds[2, True] > 10 and kinds[3, True] and kinds[2, False]
    assert any(golden["config"]["num_speculative_tokens"] for golden in GOLDENS)
    assert sum(len(step[3]) for golden in GOLDENS for step in golden["steps"]) > 100  # preemptions
    assert sum(any(golden["cached"].values()) for golden in GOLDENS) > 10


# -- the fast path -----------------------------------------------------------------------------------------------------


@settled(120)
@given(ANY_WORLD, st.sampled_from([2, 5, 96]))
def test_fast_path_takes_the_same_steps(world: World, vector: int) -> None:
    with vectorised_from(vector):
        fast = serve(world, plain=False)
    plain = serve(world, plain=True)
    for mine, theirs in zip(fast.steps, plain.steps, strict=False):
        assert mine == theirs
    assert len(fast.steps) == len(plain.steps)
    assert (fast.ended, fast.end, fast.arrival) == (plain.ended, plain.end, plain.arrival)
    assert_same_records(fast.engine.log, plain.engine.log)
    assert _queue(fast) == _queue(plain)


def _queue(run: Run) -> list[tuple[int | None, int]]:
    """The free blocks in the order in which they will be taken: (name, blocks), neighbours without one together."""
    found: list[tuple[int | None, int]] = []
    kv = vllm(run.engine).kv
    assert isinstance(kv, KVGroups)
    for block, size in kv._queue.items():
        if found and block.name is None and found[-1][0] is None:
            size += found.pop()[1]
        found.append((block.name, size))
    return found


@pytest.mark.parametrize("seed", range(0, 120, 20))
def test_requests_that_wait_for_what_falls_out_of_windows(seed: int) -> None:
    for each in range(seed, seed + 20):
        world = _tight(each)
        fast, plain = serve(world, plain=False), serve(world, plain=True)
        assert fast.steps == plain.steps, each
        assert _queue(fast) == _queue(plain), each


def _tight(seed: int) -> World:
    """A few long answers in a pool that has room for one of them, or little more."""
    rng = random.Random(seed)
    one = rng.choice([3, 4, 5, 8, 9])
    size = rng.choice([2, 3, 4, 8])
    windows = rng.choice([(one,), (one,), (one, one), (one, None), (None, one)])
    sharing, asks = rng.random() < 0.6, []
    for _ in range(rng.randint(2, 6)):
        prompt = rng.randint(1, 24)
        content = ((rng.randint(0, 1), rng.randint(1, prompt)),) if sharing and rng.random() < 0.7 else ()
        at = float(rng.choice([0, 0, 0, 2, 7, 20]))
        asks.append(Ask(prompt, rng.choice([4, 30, 60]), at=at, content=content))
    asks.sort(key=lambda ask: ask.at)
    limits = Limits(
        1 << 30,
        max(ask.prompt + ask.output for ask in asks) + 1,
        block_size=size,
        max_num_seqs=8,
        max_num_batched_tokens=rng.choice([8, 16, 64]),
        async_scheduling=rng.random() < 0.5,
        windows=windows,
    )
    need = max(_blocks(limits, ask) for ask in asks)
    blocks = need + rng.choice([0, 1, 2, 3, need // 2, need, 2 * need])
    return World(replace(limits, blocks=blocks), LinearCost(1.0, 0.0, 0.0), tuple(asks))


@settled(60)
@given(ANY_WORLD, st.booleans())
def test_blocks_are_neither_lost_nor_made(world: World, plain: bool) -> None:
    run = serve(world, plain=plain)
    kv = vllm(run.engine).kv
    assert isinstance(kv, KVGroups)
    assert all(0 <= free <= kv.total for *_, free in run.steps)
    assert kv.free == kv.total == sum(kv._queue.values())
    named = [block.name for block in kv._queue if block.name is not None]
    assert sorted(named) == sorted([*kv._table, *(name for name, twins in kv._twins.items() for _ in twins)])


# -- limits in which something simpler must come out -------------------------------------------------------------------


@settled(50)
@given(st.one_of(worlds(), worlds(speculation=True), crowds()), st.booleans())
def test_a_window_over_everything_is_no_window(world: World, plain: bool) -> None:
    wide = replace(world, limits=replace(world.limits, windows=(EVERYTHING,)))
    assert serve(wide, plain=plain).steps == serve(world, plain=plain).steps


@settled(50)
@given(st.one_of(worlds(), crowds()), st.booleans())
def test_two_groups_that_see_everything_need_twice_the_blocks(world: World, plain: bool) -> None:
    limits = replace(world.limits, enable_prefix_caching=False, watermark=0.0)
    one = serve(replace(world, limits=limits), plain=plain)
    two = replace(limits, windows=(None, EVERYTHING), blocks=2 * limits.blocks)
    doubled = serve(replace(world, limits=two), plain=plain)
    assert [(*step[:-1], 2 * step[-1]) for step in one.steps] == doubled.steps


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_long_answer_holds_its_window_and_no_more(asynchronous: bool, plain: bool) -> None:
    limits = Limits(
        1000, 20_000, max_num_batched_tokens=512, async_scheduling=asynchronous, windows=(128, None), block_size=16
    )
    run = serve(World(limits, LinearCost(1.0, 0.0, 0.0), (Ask(100, 3000),)), plain=plain)
    tokens = 100 + 2500
    full = -(-(tokens + 1) // 16)
    seen = tokens - asynchronous - 128 + 1  # the first token that the next one to return sees
    sliding = full - seen // 16
    assert run.steps[2501][-1] == 1000 - full - sliding


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("windows", [(40, None), (None, 40), (40,), (24, 24, None), (17, 90, None)])
def test_an_answer_is_found_again_whatever_has_fallen_out_of_windows(windows: tuple[int | None], plain: bool) -> None:
    content, stream = ((0, 64),), 7
    asks = [Ask(200, 150, content=content, stream=stream)]
    for shared in (64, 200, 250, 349):  # of the first request and its answer, of which the last token has no keys
        asks.append(Ask(shared + 33, 2, after=0, content=(*content, (stream, shared - 64))))
    asks[-1] = replace(asks[-1], prompt=349 + 1)
    limits = Limits(4000, 4096, max_num_batched_tokens=64, windows=windows)
    run = serve(World(limits, LinearCost(1.0, 0.0, 0.0), tuple(asks)), plain=plain)
    hits = [run.row(i)["hit"] for i in range(1, 5)]
    assert hits == [shared // 16 * 16 for shared in (64, 200, 250, 349)]


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "windows", "layers"),
    [
        ("gpt-oss-20b", (128, None), 12),
        ("gpt-oss-120b", (128, None), 18),
        ("gemma-2-9b", (4096, None), 21),
        ("gemma-3-27b", (1024,) * 6 + (None,), 10),  # 52 and 10 layers: the last groups of windows lack some
        ("gemma-3-4b", (1024,) * 6 + (None,), 5),
        ("mistral-7b-v0.1", (4096,), 32),
        ("llama-3.1-8b", (None,), 32),
    ],
)
def test_blocks_are_those_of_one_group(name: str, windows: tuple[int | None, ...], layers: int) -> None:
    model, gpu = load_model(name), find_gpu("h200")
    plan = plan_memory(model, gpu, 1, EngineSpec())
    assert plan.windows == windows
    each = kv_bytes_per_token(model) // model.num_layers
    assert plan.block_bytes == 16 * each * layers
    together = plan_memory(model, gpu, 1, EngineSpec(disable_hybrid_kv_cache_manager=True))
    alone = len(set(windows)) == 1
    assert together.windows == (windows if alone else (None,))
    assert together.block_bytes == 16 * each * model.num_layers
    left = plan.usable - plan.weights - plan.activations - plan.runtime
    assert (plan.blocks, together.blocks) == (left // plan.block_bytes - 1, left // together.block_bytes - 1)


def test_stages_share_the_groups_of_the_whole_model() -> None:
    model = load_model("gpt-oss-20b")
    halves = plan_memory(model, find_gpu("h200"), Layout(pp=2), EngineSpec())
    assert halves.windows == (128, None)
    assert halves.block_bytes == 16 * 6 * kv_bytes_per_token(model) // 24


# -- in a scenario -----------------------------------------------------------------------------------------------------


def _scenario(**engine: Any) -> dict[str, Any]:
    return {
        "model": "gpt-oss-20b",
        "fleet": {"gpu": "h200"},
        "engine": {"max_model_len": 16384, **engine},
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 40},
            "requests": 60,
            "prompt": {"kind": "fixed", "tokens": 600},
            "output": {"kind": "fixed", "tokens": 300},
        },
        "cost": {"source": "analytic"},
    }


def test_the_switch_is_vllms() -> None:
    both = [simulate(scenario_from_dict(_scenario(**each))) for each in ({}, {"disable_hybrid_kv_cache_manager": True})]
    hybrid, whole = (result.summary.memory for result in both)
    assert hybrid.kv_groups == 2 and whole.kv_groups is None
    assert hybrid.num_gpu_blocks >= 2 * whole.num_gpu_blocks > 0
    assert both[0].summary.steps == both[1].summary.steps  # nobody waits for blocks in either
    assert both[0].summary.ttft == both[1].summary.ttft


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        ({"tiers": [{"kind": "host", "size": "8GiB", "bandwidth": "50GB"}]}, "tiers"),
        ({"scheduler": "sglang"}, "sglang"),
        ({"speculative": {"method": "eagle", "num_tokens": 2, "acceptance": [1]}}, "draft"),
    ],
)
def test_where_windows_are_not_simulated_it_says_so(engine: dict[str, Any], why: str) -> None:
    plan = plan_memory(load_model("gpt-oss-20b"), find_gpu("h200"), 1, EngineSpec(), role="decode")
    assert plan.windows == (None,)
    wanted = scenario_from_dict(_scenario(**engine, disable_hybrid_kv_cache_manager=False))
    with pytest.raises(UserError, match=why):
        simulate(wanted)
