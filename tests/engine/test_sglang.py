"""Schedulers besides vLLM's: SGLang's decisions step by step, and what must hold of every one of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.engine import ABORTED, FINISHED, BlockNames, Engine, Limits, Request, extend
from steelyard.engine.policies import MakePolicy, SglangSettings, policy_of
from steelyard.engine.policies.radix import Content, RadixTree
from steelyard.errors import UserError
from steelyard.validate.parity import GoldenReplay, LinearCost, read_golden
from support.engine_worlds import Ask, Run, World, assert_same_records, serve, settled, worlds
from support.paths import DATA

GOLDENS = list(read_golden(DATA / "sglang-parity" / "decisions.jsonl.gz"))
BY_NAME = [golden["name"] for golden in GOLDENS]
CLOSE = 1e-6


def use(engine: Any, policy: MakePolicy, names: BlockNames, plain: bool) -> None:
    """Have an engine that has run nothing yet decide by another policy."""
    engine.scheduler = policy(engine.limits, names, plain)
    engine.to_load = engine.scheduler.to_load


# -- SGLang's own decisions --------------------------------------------------------------------------------------------


def replayed(golden: dict[str, Any], plain: bool) -> GoldenReplay:
    """A golden scenario through our engine."""
    config, latency = golden["config"], golden["config"]["latency"]
    chunk = config["chunked_prefill_size"]
    limits = Limits(
        blocks=config["max_total_tokens"],
        max_model_len=config["max_total_tokens"],
        block_size=1,
        max_num_seqs=config["max_running_requests"],
        max_num_batched_tokens=chunk or config["max_total_tokens"],
        enable_chunked_prefill=chunk is not None,
        enable_prefix_caching=not config["disable_radix_cache"],
        async_scheduling=config["overlap"],
    )
    own = ("schedule_policy", "max_prefill_tokens", "enable_mixed_chunk", "schedule_conservativeness")
    settings = SglangSettings(**{key: config[key] for key in (*own, "max_new_tokens", "ignore_eos")})
    seen, names, streams = GoldenReplay(), BlockNames(1), dict[str, int]()
    cost = LinearCost(latency["base"], latency["per_token"], latency["per_kv_token"])
    engine = Engine(limits, cost, names, plain=plain, observer=seen)
    use(engine, policy_of("sglang", settings), names, plain)
    for i, asked in enumerate(golden["requests"]):
        content = tuple((streams.setdefault(name, len(streams)), n) for name, n in asked["prefix"])
        stream = asked.get("stream")
        chain = None if stream is None else extend(content, streams.setdefault(stream, len(streams)))
        prompt, at = asked["prompt_len"], asked["arrival_time"]
        keys = names.names(chain or content, prompt)
        engine.advance(at)
        engine.submit(Request(i, at, prompt, asked["output_len"], keys=keys, chain=chain), at)
    engine.advance(inf)
    seen.ended(engine.log.ends)
    rows = engine.log.ended
    for index, first, last, hit in zip(rows["index"], rows["first"], rows["last"], rows["hit"], strict=True):
        seen.first_token[int(index)] = engine.log.ends[int(first)]
        seen.finish[int(index)] = engine.log.ends[int(last)]
        seen.cached[int(index)] = int(hit)
    return seen


@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])
@pytest.mark.parametrize("golden", GOLDENS, ids=BY_NAME)
def test_every_decision_is_sglangs_own(golden: dict[str, Any], plain: bool) -> None:
    seen = replayed(golden, plain)
    ids = [asked["id"] for asked in golden["requests"]]
    for ours, theirs in zip(seen.steps, golden["steps"], strict=False):
        start, end, tokens, retracted, free = ours
        assert [{ids[i]: n for i, n in tokens.items()}, [ids[i] for i in retracted], free] == theirs[2:]
        assert (start, end) == pytest.approx(theirs[:2], abs=CLOSE)
    assert len(seen.steps) == len(golden["steps"])
    assert {ids[i]: hit for i, hit in seen.cached.items()} == golden["cached"]
    for mine, key in ((seen.first_token, "first_token"), (seen.finish, "finish")):
        assert {ids[i]: at for i, at in mine.items()} == pytest.approx(golden[key], abs=CLOSE)


def test_the_goldens_cover_what_they_should() -> None:
    def cases(key: str) -> set[Any]:
        return {golden["config"][key] for golden in GOLDENS}

    assert cases("schedule_policy") == {"lpm", "fcfs"}
    for key in ("overlap", "enable_mixed_chunk", "disable_radix_cache", "ignore_eos"):
        assert cases(key) == {True, False}, key
    assert {None, 16, 128} <= cases("chunked_prefill_size") and {None, 40, 120} <= cases("max_new_tokens")
    assert any(len(golden["requests"]) > 128 for golden in GOLDENS)
    assert sum(len(step[3]) for golden in GOLDENS for step in golden["steps"]) > 30  # retractions
    assert {golden["sglang"] for golden in GOLDENS} == {"0.5.23"}


def test_what_sglang_does_not_have_here_is_refused() -> None:
    names = BlockNames(16)
    with pytest.raises(UserError, match="block_size must be 1"):
        policy_of("sglang")(Limits(8, 64), names, True)
    with pytest.raises(UserError, match="speculative"):
        policy_of("sglang")(Limits(8, 64, block_size=1, speculative_tokens=2), names, True)


# -- the tree ----------------------------------------------------------------------------------------------------------

TEXTS = st.lists(st.sampled_from("ab"), min_size=1, max_size=9).map("".join)


def content(text: str, names: BlockNames, own: int) -> Content:
    """Content whose streams are runs of equal letters."""
    runs: list[tuple[int, int]] = []
    for letter in text:
        if runs and runs[-1][0] == ord(letter):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((ord(letter), 1))
    return Content(names.names(tuple(runs), len(text)), -own)


@settled(200)
@given(st.lists(TEXTS, min_size=1, max_size=8), TEXTS, st.integers(0, 30))
def test_the_tree_finds_the_longest_common_prefix_and_evicts_whole_leaves(
    texts: list[str], asked: str, wanted: int
) -> None:
    tree, names = RadixTree(), BlockNames(1)
    for own, text in enumerate(texts, 1):
        tree.insert(content(text, names, own), len(text))
    known = {text[:n] for text in texts for n in range(1, len(text) + 1)}
    assert tree.evictable == len(known)
    longest = max((n for n in range(len(asked) + 1) if asked[:n] in known), default=0)
    node = tree.match(content(asked, names, 99), len(asked))
    assert node.end == longest
    tree.lock(node)
    gone = tree.evict(wanted)
    assert gone >= min(wanted, len(known) - longest) and tree.evictable == len(known) - longest - gone
    assert tree.match(content(asked, names, 98), len(asked)).end == longest
    tree.unlock(node)
    assert tree.evict(1 << 30) == len(known) - gone and tree.evictable == 0


def test_the_least_recently_used_leaf_goes_first() -> None:
    tree, names = RadixTree(), BlockNames(1)
    first, second = (Content(names.names(((s, 5),), 5), -s) for s in (1, 2))
    tree.insert(first, 5)
    tree.insert(second, 5)
    tree.match(first, 5)
    assert tree.evict(1) == 5
    assert (tree.match(first, 5).end, tree.match(second, 5).end) == (5, 0)


# -- what holds of every scheduler -------------------------------------------------------------------------------------

NAMES = ("vllm", "sarathi", "orca", "static", "phase-aware")
SGLANG = st.builds(
    SglangSettings,
    schedule_policy=st.sampled_from(["lpm", "fcfs"]),
    max_prefill_tokens=st.sampled_from([7, 64, 16384]),
    enable_mixed_chunk=st.booleans(),
    schedule_conservativeness=st.sampled_from([1.0, 0.1]),
    max_new_tokens=st.sampled_from([None, None, 30]),
    ignore_eos=st.booleans(),
)


@st.composite
def policies(draw: st.DrawFn) -> tuple[World, MakePolicy, str]:
    """A world, and one of the schedulers with settings under which it works."""
    world = draw(worlds())
    limits = world.limits
    name = draw(st.sampled_from((*NAMES, "sglang", "sglang", "sglang")))
    if name != "sglang":
        if name in ("orca", "static"):
            budget = max(limits.max_num_batched_tokens, *(ask.prompt for ask in world.asks), limits.max_num_seqs)
            limits = replace(
                limits,
                max_num_batched_tokens=budget,
                long_prefill_token_threshold=0,
                enable_chunked_prefill=False,
                enable_prefix_caching=False,
            )
        return replace(world, limits=limits), policy_of(name), name
    settings = draw(SGLANG)
    longest = max(ask.prompt + max(ask.output, settings.max_new_tokens or 0) for ask in world.asks) + 3
    limits = replace(
        limits,
        block_size=1,
        blocks=longest + draw(st.sampled_from([0, 1, 10, longest])),
        max_model_len=longest,
        max_num_batched_tokens=limits.max_num_batched_tokens + limits.max_num_seqs,
        priority=False,
    )
    return replace(world, limits=limits), policy_of(name, settings), name


def run(world: World, policy: MakePolicy, plain: bool) -> Run:
    """A world through an engine with another scheduler."""
    return serve(world, plain=plain, prepare=lambda engine, names: use(engine, policy, names, plain))


@settled(160)
@given(policies(), st.booleans())
def test_nobody_is_lost_and_all_memory_is_free_again(case: tuple[World, MakePolicy, str], plain: bool) -> None:
    world, policy, _ = case
    seen = run(world, policy, plain)
    assert sorted([*seen.ended, *seen.refused]) == list(range(len(world.asks)))
    engine, scheduler = seen.engine, seen.engine.scheduler
    assert engine.outstanding == 0 and engine.idle and not scheduler.running and not scheduler.waiting
    assert scheduler.kv.free == world.limits.blocks
    for i in seen.ended:
        status = seen.row(i)["status"]
        assert status == FINISHED or (status == ABORTED and world.asks[i].abort < inf)


@settled(160)
@given(policies())
def test_tokens_are_conserved_and_memory_never_overdrawn(case: tuple[World, MakePolicy, str]) -> None:
    world, policy, name = case
    seen = run(world, policy, True)
    for i in seen.ended:
        row = seen.row(i)
        mine = [each for each in seen.brought if each.index == i]
        delivered = sum(each.delivered for each in mine)
        if row["status"] != FINISHED:
            assert delivered < world.output(i)
            continue
        assert delivered == world.output(i)
        if not row["preemptions"]:
            scheduled = sum(tokens.get(i, 0) for _, _, tokens, _, _ in seen.steps)
            lost = sum(each.tokens if each.wasted else each.rejected + each.clipped for each in mine)
            assert scheduled - lost == world.asks[i].prompt - row["hit"] + world.output(i) - 1
        if name in ("orca", "static"):
            assert not row["preemptions"], "memory was reserved to the end"
    for _, _, tokens, _, free in seen.steps:
        assert tokens and all(n > 0 for n in tokens.values())
        assert 0 <= free <= world.limits.blocks and len(tokens) <= world.limits.max_num_seqs


@settled(120)
@given(policies(), st.booleans())
def test_time_only_moves_forward(case: tuple[World, MakePolicy, str], plain: bool) -> None:
    world, policy, _ = case
    seen = run(world, policy, plain)
    log = seen.engine.log
    start, end = log.start(), log.end
    scheduled = np.array([step[0] for step in seen.steps])
    assert (np.diff(scheduled) >= 0).all()
    assert (start < end).all() and (start[1:] >= end[:-1]).all() and (scheduled <= start).all()
    behind = 2 if world.limits.async_scheduling else 1
    assert (scheduled[behind:] >= end[:-behind]).all()


@settled(120)
@given(policies())
def test_fast_path_takes_the_same_steps(case: tuple[World, MakePolicy, str]) -> None:
    world, policy, _ = case
    fast, plain = run(world, policy, False), run(world, policy, True)
    assert fast.steps == plain.steps
    assert (fast.ended, fast.end) == (plain.ended, plain.end)
    assert_same_records(fast.engine.log, plain.engine.log)


# -- one by one --------------------------------------------------------------------------------------------------------

EACH_SECOND = LinearCost(1.0, 0.0, 0.0)


def test_a_static_batch_runs_to_its_end_and_orcas_does_not() -> None:
    limits = Limits(64, 256, max_num_seqs=2, enable_chunked_prefill=False, async_scheduling=False)
    asks = (Ask(4, 10), Ask(4, 2), Ask(4, 2, at=0.5))
    ends = {name: run(World(limits, EACH_SECOND, asks), policy_of(name), False).end for name in ("static", "orca")}
    assert ends == {"static": {0: 10.0, 1: 2.0, 2: 12.0}, "orca": {0: 10.0, 1: 2.0, 2: 4.0}}


def test_orca_reserves_memory_to_the_end_and_vllm_does_not() -> None:
    limits = Limits(4, 64, enable_chunked_prefill=False, enable_prefix_caching=False, async_scheduling=False)
    short, long = ((Ask(16, output), Ask(16, 1)) for output in (33, 34))  # three blocks and one, four and one
    for name, asks, first in (
        ("orca", short, {0: 16, 1: 16}),
        ("orca", long, {0: 16}),
        ("vllm", long, {0: 16, 1: 16}),
    ):
        assert run(World(limits, EACH_SECOND, asks), policy_of(name), True).steps[0][2] == first


def test_answers_go_before_planning_but_not_for_ever() -> None:
    limits = Limits(64, 256, max_num_seqs=1, async_scheduling=False)
    planning = tuple(Ask(4, 1, priority=1) for _ in range(3))
    answers = tuple(Ask(4, 1, at=0.5) for _ in range(9))
    seen = run(World(limits, EACH_SECOND, planning + answers), policy_of("phase-aware"), False)
    assert seen.ended == [0, 3, 4, 5, 6, 1, 7, 8, 9, 10, 2, 11]


def test_planning_gives_way_first_when_blocks_run_out() -> None:
    limits = Limits(4, 64, block_size=4, async_scheduling=False, enable_prefix_caching=False)
    asks = (Ask(4, 8, priority=1), Ask(4, 8))
    seen = run(World(limits, EACH_SECOND, asks), policy_of("phase-aware"), True)
    assert [preempted for _, _, _, preempted, _ in seen.steps if preempted] == [[0]]
    plain = run(World(limits, EACH_SECOND, asks), policy_of("vllm"), True)
    assert [preempted for _, _, _, preempted, _ in plain.steps if preempted] == [[1]]


def test_sglang_runs_prompts_before_answers() -> None:
    limits = Limits(256, 256, block_size=1, async_scheduling=False)
    asks = (Ask(4, 6), Ask(4, 2, at=2.5))
    seen = run(World(limits, EACH_SECOND, asks), policy_of("sglang"), False)
    assert [tokens for _, _, tokens, _, _ in seen.steps] == [
        {0: 4},
        {0: 1},
        {0: 1},
        {1: 4},
        {0: 1, 1: 1},
        {0: 1},
        {0: 1},
    ]
    row = seen.row(0)
    gaps = [b - a for a, b in pairwise([0, 1, 2, 4, 5, 6])]
    assert (row["first"], row["last"]) == (0, 6) and sum(gaps) == 6
    assert seen.engine.log.breaks == [(2, 4)]
