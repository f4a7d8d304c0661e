"""Pipelines: vLLM's own decisions, timelines by hand, engines without stages as the limit, and whole fleets."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.cost.step import StepTime
from steelyard.engine import ABORTED, FINISHED, Limits, Pipeline, Request, StepCost
from steelyard.errors import UserError
from steelyard.model import layers_of_stages
from steelyard.scenario import scenario_from_dict
from steelyard.sim import Result, simulate
from steelyard.sim.setup import set_up
from steelyard.validate.parity import compare, read_golden
from support.engine_worlds import (
    ANY_COSTS,
    Ask,
    PiecewiseCost,
    Run,
    TwoKinds,
    World,
    assert_same_records,
    crowds,
    serve,
    settled,
    vllm,
    worlds,
)
from support.known import known
from support.paths import DATA

GOLDENS = list(read_golden(DATA / "vllm-0.32-pipeline-decisions.jsonl.gz"))

ANY_WORLD = st.one_of(worlds(), worlds(equals=True), crowds())
STAGES = st.lists(ANY_COSTS, min_size=2, max_size=4)


def piped(world: World, costs: list[StepCost], *, plain: bool = False) -> Run:
    staged = replace(world, limits=replace(world.limits, stages=len(costs)))
    return serve(staged, plain=plain, costs=costs)


def bubble(engine: Pipeline) -> float:
    stages = engine.stages
    return 1 - stages.worked / (stages.occupied * len(stages.costs))


# -- vLLM's own decisions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("golden", GOLDENS, ids=[golden["name"] for golden in GOLDENS])
def test_every_decision_is_the_engines_own(golden: dict[str, Any]) -> None:
    assert compare(golden).difference is None
    assert compare(golden, plain=True).difference is None


def test_the_committed_set_covers_what_it_should() -> None:
    kinds = {(g["config"]["pipeline_parallel_size"], g["config"]["async_scheduling"]) for g in GOLDENS}
    assert kinds == {(pp, ahead) for pp in (2, 3, 4) for ahead in (False, True)}
    assert {g["config"]["policy"] for g in GOLDENS} == {"fcfs", "priority"}
    assert any(g.get("aborts") for g in GOLDENS)
    assert sum(len(step[3]) for g in GOLDENS for step in g["steps"]) > 100  # preemptions


def test_another_number_of_stages_decides_otherwise() -> None:
    differences = [compare({**g, "config": g["config"] | {"pipeline_parallel_size": 1}}).difference for g in GOLDENS]
    assert sum(each is not None for each in differences) > 0.7 * len(GOLDENS)


# -- one stage, and lanes ---------------------------------------------------------------------------------------------


@settled(100)
@given(ANY_WORLD, st.booleans())
def test_one_stage_is_an_engine_without_stages(world: World, plain: bool) -> None:
    one, none = piped(world, [world.cost], plain=plain), serve(world, plain=True)
    assert one.steps == none.steps
    assert (one.ended, one.end, one.arrival) == (none.ended, none.end, none.arrival)
    assert one.engine.log.given_up == none.engine.log.given_up
    assert waits(one) == waits(none)


def waits(run: Run) -> list[float]:
    """Every gap between tokens, rising."""
    seconds, counts = run.engine.log.gaps()
    return sorted(np.repeat(seconds, counts).tolist())


@settled(120)
@given(ANY_WORLD, STAGES)
def test_lanes_take_the_same_steps_as_one_request_at_a_time(world: World, costs: list[StepCost]) -> None:
    fast, plain = piped(world, costs), piped(world, costs, plain=True)
    for mine, theirs in zip(fast.steps, plain.steps, strict=False):
        assert mine == theirs
    assert (fast.ended, fast.end, fast.arrival) == (plain.ended, plain.end, plain.arrival)
    assert_same_records(fast.engine.log, plain.engine.log)
    assert isinstance(fast.engine, Pipeline) and isinstance(plain.engine, Pipeline)
    assert fast.engine.stages.worked == plain.engine.stages.worked


def test_who_began_together_stays_together() -> None:
    asks = tuple(Ask(64, 200) for _ in range(32))
    limits = Limits(blocks=4000, max_model_len=512, max_num_seqs=64, max_num_batched_tokens=1024, stages=2)
    fast = serve(World(limits, PiecewiseCost(500), asks), plain=False, costs=[PiecewiseCost(500)] * 2)
    assert [step[2] for step in fast.steps[2:-2]] == [dict.fromkeys(range(k, k + 16), 1) for k in (0, 16)] * 198


# -- nothing is lost --------------------------------------------------------------------------------------------------


@settled(80)
@given(st.one_of(ANY_WORLD, worlds(everyone_fits=False)), STAGES, st.booleans())
def test_every_request_ends_once_and_every_block_is_free_again(
    world: World, costs: list[StepCost], plain: bool
) -> None:
    run = piped(world, costs, plain=plain)
    assert sorted([*run.ended, *run.refused]) == list(range(len(world.asks)))
    engine, scheduler = run.engine, vllm(run.engine)
    assert engine.outstanding == 0 and engine.idle
    assert scheduler.kv.free == world.limits.blocks
    assert not scheduler.running and not scheduler.singles and not scheduler.waiting
    ends = np.array(engine.log.ends)
    assert (np.diff(ends) >= 0).all()
    for i in run.ended:
        if run.row(i)["status"] == ABORTED:
            assert run.end[i] >= run.arrival[i] + world.asks[i].abort


@settled(80)
@given(worlds(aborts=False), STAGES)
def test_every_token_comes_once_and_after_the_one_before(world: World, costs: list[StepCost]) -> None:
    run = piped(world, costs, plain=True)
    ends = run.engine.log.ends
    times: dict[int, list[float]] = defaultdict(list)
    for each in run.brought:
        times[each.index] += [ends[each.step]] * each.delivered
    found: list[float] = []
    for i in run.ended:
        if run.row(i)["status"] == FINISHED:
            assert len(times[i]) == world.output(i) and len(set(times[i])) == len(times[i])
            found += np.diff(times[i]).tolist()
    assert waits(run) == pytest.approx(sorted(found))


# -- timelines by hand ------------------------------------------------------------------------------------------------


def stage(decode: float, other: float, prepare: float = 0.0) -> TwoKinds:
    return TwoKinds(StepTime(decode, prepare, 0.0, 0.0), StepTime(other, prepare, 0.0, 0.0))


def burst(requests: int, *, prompt: int, output: int, asynchronous: bool = True, budget: int = 16) -> World:
    limits = Limits(
        blocks=1000, max_model_len=512, max_num_batched_tokens=budget, max_num_seqs=256, async_scheduling=asynchronous
    )
    return World(limits, stage(1, 1), tuple(Ask(prompt, output) for _ in range(requests)))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_two_batches_in_two_stages(asynchronous: bool) -> None:
    """Two prompts that fill a batch each: 2 s and 3 s in the two stages; then one decode each, of 1 s and 1 s.

    A: 0-2 and 2-5; B: 2-4 and 5-8. A's decode follows its token at 5: 5-6, and 8-9 when B has left the second
    stage. B's: 8-9, 9-10.
    """
    world = burst(2, prompt=16, output=2, asynchronous=asynchronous)
    run = piped(world, [stage(1, 2), stage(1, 3)])
    assert [step[1] for step in run.steps] == [5, 8, 9, 10]
    assert [step[2] for step in run.steps] == [{0: 16}, {1: 16}, {0: 1}, {1: 1}]
    assert [run.row(i)["first"] for i in (0, 1)] == [0, 1] and run.end == {0: 9, 1: 10}
    assert isinstance(run.engine, Pipeline)
    assert bubble(run.engine) == pytest.approx(1 - 14 / 20)


def test_scheduling_ahead_hides_the_first_stages_host() -> None:
    """With a second to prepare, a decode starts a second after its token is back; or at once, prepared before."""
    costs: list[StepCost] = [stage(2, 2, prepare=1), stage(2, 2)]
    sync, ahead = (piped(burst(1, prompt=4, output=5, asynchronous=a), costs) for a in (False, True))
    assert [step[1] for step in sync.steps] == [5, 10, 15, 20, 25]
    assert [step[1] for step in ahead.steps] == [5, 9, 13, 17, 21]


def test_chunks_of_one_prompt_are_in_several_batches() -> None:
    """The second chunk enters the first stage while the second stage has the first one."""
    run = piped(burst(1, prompt=40, output=2), [stage(1, 2), stage(1, 2)])
    assert [step[2][0] for step in run.steps] == [16, 16, 8, 1]
    assert [step[0] for step in run.steps] == [0, 0, 0, 6], "two turns after the last chunk"
    assert [step[1] for step in run.steps] == [4, 6, 8, 10]


def test_a_later_stages_host_takes_batches_one_after_the_other() -> None:
    """Its three seconds begin when the first stage has launched a batch, not before it has launched the last."""
    run = piped(burst(2, prompt=16, output=1), [stage(1, 1), stage(1, 1, prepare=3)])
    assert [step[1] for step in run.steps] == [4, 7]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_lone_request_takes_all_stages_one_after_the_other(asynchronous: bool) -> None:
    world = burst(1, prompt=8, output=50, asynchronous=asynchronous)
    alone = piped(world, [stage(1, 2), stage(1.5, 3), stage(0.5, 1)])
    whole = serve(replace(world, cost=stage(3, 6)), plain=True)
    assert alone.end[0] == whole.end[0] == 6 + 49 * 3
    assert isinstance(alone.engine, Pipeline) and bubble(alone.engine) == pytest.approx(2 / 3)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_full_lanes_keep_every_stage_at_work(asynchronous: bool) -> None:
    """As many prompts as two batches take: a batch comes out of two stages as often as out of one of them alone."""
    world = burst(32, prompt=1, output=200, asynchronous=asynchronous)
    run = piped(world, [stage(1, 1), stage(1, 1)])
    assert len(run.steps) == 400 and run.end[31] == 401
    assert isinstance(run.engine, Pipeline) and bubble(run.engine) < 0.01


def test_the_stage_with_more_layers_governs() -> None:
    run = piped(burst(32, prompt=1, output=100), [stage(1, 1), stage(3, 3)])
    ends = [step[1] for step in run.steps]
    assert set(np.diff(ends)) == {3}
    assert isinstance(run.engine, Pipeline) and bubble(run.engine) == pytest.approx(1 / 3, abs=0.01)


def test_one_batch_of_all_leaves_the_other_stage_idle() -> None:
    """vLLM does not split what fits one batch: a burst that does stays together, and gains nothing."""
    run = piped(burst(16, prompt=1, output=100), [stage(1, 1), stage(1, 1)])
    assert len(run.steps) == 100 and run.end[15] == 200


def test_a_crash_empties_all_stages() -> None:
    limits = Limits(blocks=100, max_model_len=64, stages=2)
    engine = Pipeline(limits, [stage(100, 100), stage(100, 100)])
    engine.submit(Request(0, 0.0, 8, 5), 0.0)
    engine.advance(1.0)
    assert [r.index for r in engine.crash(1.0)] == [0] and engine.idle
    engine.submit(Request(1, 1.0, 8, 1), 1.0)
    engine.advance(inf)
    assert engine.end_of(engine.finished[0]) == 201


def test_tokens_of_several_turns_apart_are_counted() -> None:
    r = Request(0, 0.0, 8, 9)
    r.stride = 3
    for turn in (2, 5, 8, 10, 13):
        r.emit(turn)
    assert r.breaks == [(8, 10)] and r.deliveries == 5
    found = []
    for seen in range(6):
        r.seen = seen
        found.append(r.first_news())
    assert found == [2, 5, 8, 10, 13, -1]
    r.undo_emit(13)
    r.undo_emit(10)
    assert r.last == 8 and not r.breaks


# -- fleets -----------------------------------------------------------------------------------------------------------


def fleet(**changes: Any) -> dict[str, Any]:
    return {
        "model": "llama-3.1-8b",
        "fleet": {"gpu": "h100", "pp": 2},
        "engine": {"max_num_batched_tokens": 1024},
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 30},
            "requests": 60,
            "prompt": {"kind": "uniform", "min": 50, "max": 900},
            "output": {"kind": "uniform", "min": 2, "max": 60},
        },
        "cost": {"source": "analytic"},
        **changes,
    }


def run(data: dict[str, Any], *, plain: bool = False) -> Result:
    return simulate(scenario_from_dict(data), plain=plain)


def all_finished(result: Result) -> None:
    assert set(result.requests["status"]) == {"finished"}
    assert (result.requests["e2e"] >= result.requests["ttft"]).all() and (result.requests["ttft"] > 0).all()


def test_a_pipeline_serves() -> None:
    fast, slow = run(fleet()), run(fleet(), plain=True)
    all_finished(fast)
    for name in ("first_token", "finish"):
        assert fast.requests[name].tolist() == slow.requests[name].tolist()
    (pool,) = fast.summary.pools
    assert pool.gpus == 2 and pool.layout == "pp=2" and 0 < known(pool.pipeline_bubble) < 1
    steps = fast.steps
    assert fast.summary.steps == len(steps["end"]) and (steps["n_decode"] + steps["prefill_tokens"] > 0).all()
    assert fast.summary.itl.count == fast.requests["output"].sum() - 60
    assert fast.summary.itl.mean == pytest.approx(fast.summary.tpot.mean, rel=0.1)


def test_no_pool_of_one_stage_has_bubbles() -> None:
    assert run(fleet(fleet={"gpu": "h100"})).summary.pools[0].pipeline_bubble is None


def test_the_way_it_is_driven_changes_nothing() -> None:
    """Alone, or woken by the bounds that it gives for its next end."""
    alone, asked = (run(fleet(fleet={"gpu": "h100", "pp": 3, "router": r})) for r in ("random", "least-outstanding"))
    for name in ("first_token", "finish"):
        assert alone.requests[name].tolist() == asked.requests[name].tolist()


def test_prefill_and_decode_pools_have_stages_of_their_own() -> None:
    pools = [{"role": "prefill", "gpu": "h100", "pp": 2}, {"role": "decode", "gpu": "h100", "pp": 4}]
    result = run(fleet(fleet={"pools": pools}))
    all_finished(result)
    assert [pool.layout for pool in result.summary.pools] == ["pp=2", "pp=4"]
    assert result.summary.links["inside_nodes"].bytes > 0


def test_whoever_is_on_a_pipeline_that_crashes_starts_over() -> None:
    crash = [{"at": 0.6, "crash": {"replica": 0, "restart_after": 0.5}}]
    data = fleet(fleet={"gpu": "h100", "pp": 2, "replicas": 2, "router": "least-outstanding"}, dynamics=crash)
    fast, slow = run(data), run(data, plain=True)
    all_finished(fast)
    assert known(fast.summary.dynamics).retries > 0
    assert fast.requests["finish"].tolist() == slow.requests["finish"].tolist()


def test_stages_have_their_layers_and_the_fullest_one_governs_memory() -> None:
    setup = set_up(scenario_from_dict(fleet(fleet={"gpu": "h100", "pp": 3}))).pools[0]
    assert layers_of_stages(32, 3) == (11, 11, 10)
    first, second, last = (cost.mixed(0, 0, 0, [(512, 0)]).gpu for cost in setup.stages)
    assert first > second > 0 and last > 10 / 11 * second  # embedding and sampling on top
    whole = setup.cost.mixed(0, 0, 0, [(512, 0)]).gpu
    assert first + second + last == pytest.approx(whole, rel=1e-9), "sends between stages are in both"
    even = set_up(scenario_from_dict(fleet(fleet={"gpu": "h100", "pp": 2}))).pools[0]
    assert setup.memory.block_bytes == 11 / 16 * even.memory.block_bytes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "qwen3-30b-a3b", "fleet": {"gpu": "h100", "pp": 2, "dp": 2}}, "pp: 2 stages .* together with dp: 2"),
        ({"engine": {"speculative": {"method": "ngram", "num_tokens": 2, "acceptance": [1]}}}, "together with drafts"),
        ({"engine": {"scheduler": "sglang"}}, "together with scheduler: sglang"),
        ({"engine": {"fresh": True}}, "together with fresh: true"),
        ({"engine": {"tiers": [{"kind": "host", "size": "10GB", "bandwidth": "20GB"}]}}, "together with tiers"),
        ({"dynamics": [{"at": 1, "slow": {"factor": 2}}]}, "several stages do not slow down"),
        ({"fleet": {"gpu": "h100", "pp": 33}}, "32 layers cannot be divided over 33 stages"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        run(fleet(**changes))
