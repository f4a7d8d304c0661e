"""Layers with a recurrent state, and layers that attend in chunks: vLLM's own decisions replayed, and the fast path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.engine import Limits
from steelyard.validate.parity import compare, read_golden
from support.engine_worlds import World, assert_same_records, crowds, serve, settled, vectorised_from, worlds
from support.paths import DATA

STATES = list(read_golden(DATA / "vllm-0.32-state-decisions.jsonl.gz"))
CHUNKS = list(read_golden(DATA / "vllm-0.32-chunk-decisions.jsonl.gz"))
GOLDENS = [*STATES, *CHUNKS]


@pytest.mark.parametrize("plain", [False, True], ids=["fast", "plain"])
@pytest.mark.parametrize("golden", GOLDENS, ids=[golden["name"] for golden in GOLDENS])
def test_every_decision_is_the_engines_own(golden: dict[str, Any], plain: bool) -> None:
    assert compare(golden, plain=plain).difference is None


def test_the_goldens_cover_what_they_should() -> None:
    for key in ("async_scheduling", "scheduler_reserve_full_isl", "enable_chunked_prefill"):
        for goldens in (STATES, CHUNKS):
            assert {golden["config"][key] for golden in goldens} == {True, False}, key
    assert {golden["config"]["enable_prefix_caching"] for golden in CHUNKS} == {True, False}
    assert not any(golden["config"]["enable_prefix_caching"] for golden in STATES)
    assert {(len(golden["kv_groups"]), golden["state_groups"]) for golden in STATES} >= {(1, 1), (1, 3), (1, 7), (3, 1)}
    assert all(golden["chunked"] and None in golden["kv_groups"] for golden in CHUNKS)
    for goldens in (STATES, CHUNKS):
        assert sum(len(step[3]) for golden in goldens for step in golden["steps"]) > 50  # preemptions
    assert sum(any(golden["cached"].values()) for golden in CHUNKS) > 4


def test_a_replay_without_the_states_differs() -> None:
    """The goldens would notice if a request's states took no blocks."""
    differences = [compare(golden | {"state_groups": 0}).difference for golden in STATES]
    assert sum(each is not None for each in differences) > len(STATES) // 2


def test_a_replay_with_sliding_windows_instead_of_chunks_differs() -> None:
    differences = [compare(golden | {"chunked": False}).difference for golden in CHUNKS]
    assert sum(each is not None for each in differences) > len(CHUNKS) // 2


# -- the fast path -----------------------------------------------------------------------------------------------------


@st.composite
def stateful(draw: st.DrawFn) -> World:
    """A world whose requests hold blocks of state, in a pool with room for little more than the largest."""
    world = draw(st.one_of(worlds(), crowds()))
    windows = (None,) * draw(st.integers(1, 3))
    limits = replace(
        world.limits, windows=windows, states=draw(st.integers(1, 9)), enable_prefix_caching=False, blocks=1 << 30
    )
    return _scarce(draw, world, limits)


@st.composite
def chunked(draw: st.DrawFn) -> World:
    """A world with chunks of a few blocks."""
    world = draw(st.one_of(worlds(), crowds()))
    chunk = world.limits.block_size * draw(st.sampled_from([1, 2, 3, 8]))
    windows = draw(st.sampled_from([(chunk, None), (None, chunk), (chunk, chunk, chunk, None)]))
    return _scarce(draw, world, replace(world.limits, windows=windows, chunked=True, blocks=1 << 30))


def _scarce(draw: st.DrawFn, world: World, limits: Limits) -> World:
    need = max(_blocks(limits, ask.prompt + ask.output) for ask in world.asks)
    spare = draw(st.sampled_from([0, 0, 1, 3, need // 2, 3 * need]))
    return replace(world, limits=replace(limits, blocks=need + spare))


def _blocks(limits: Limits, tokens: int) -> int:
    whole = -(-min(tokens, limits.max_model_len) // limits.block_size)
    return limits.states + sum(min(whole, limits.most_blocks(window)) for window in limits.windows)


@settled(80)
@given(st.one_of(stateful(), chunked()), st.sampled_from([2, 5, 96]))
def test_fast_path_takes_the_same_steps(world: World, vector: int) -> None:
    with vectorised_from(vector):
        fast = serve(world, plain=False)
    plain = serve(world, plain=True)
    assert fast.steps == plain.steps
    assert (fast.ended, fast.end, fast.arrival) == (plain.ended, plain.end, plain.arrival)
    assert_same_records(fast.engine.log, plain.engine.log)


# -- what requests hold ------------------------------------------------------------------------------------------------


def test_a_request_is_refused_that_has_no_room_for_its_states() -> None:
    limits = Limits(blocks=7, max_model_len=64, block_size=16, states=5, enable_prefix_caching=False)
    assert limits.refusal(20, 12) is None
    assert "needs 8 KV blocks" in (limits.refusal(20, 14) or "")


def test_room_for_tokens_is_that_of_all_groups_of_attention() -> None:
    limits = Limits(blocks=90, max_model_len=64, block_size=16, windows=(None, None, None), states=1)
    assert limits.room == 30 * 16
    assert replace(limits, states=0).room == 90 * 16  # windows are not told apart
