"""Trajectories that engines have no room for are refused with the reason; nothing waits for them for ever."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from steelyard.engine import Limits, Request
from steelyard.errors import UserError
from steelyard.fleet.environment import Environment
from steelyard.posttrain.attempt import Attempt
from steelyard.posttrain.engines import EngineKind
from steelyard.posttrain.planning import replica_model
from steelyard.posttrain.replicas import Happening, Replicas
from steelyard.posttrain.run import drive
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.posttrain.turns import Turns
from steelyard.records import Trajectory, Turn
from steelyard.scenario import posttrain_from_dict
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.sim.prepared import prepare

BLOCK = 64
MODES = ("colocated", "split", "one-step-off", "asynchronous")
TAILS: tuple[Any, ...] = (
    "none",
    "over-sampling",
    "tail-batching",
    {"kind": "partial", "budget": 300},
    {"kind": "divided", "chunk": 100},
    "repack",
)
ROUTERS = cycle(("cost-aware", "sticky", "c-mlfq", "heddle", "round-robin", "length-predicted", "least-attained"))
POOLS = cycle(("none", "thresholds", "payoff"))
PLANNERS = cycle(("given", "libra", "given", "search", "one-at-a-time", "given", "proportional", "simulated"))
RECONFIGURE = {"kind": "reconfigure", "tp": 4, "few": 0.5}
CASES = [
    (mode, tail, next(ROUTERS), "none" if mode == "colocated" else next(POOLS), next(PLANNERS))
    for mode in MODES
    for tail in TAILS
] + [(mode, RECONFIGURE, "cost-aware", "none", "given") for mode in ("colocated", "split")]


def scenario(blocks: int, context: int = 1100, **more: Any) -> PosttrainScenario:
    """A small run whose trajectories come to at most 1,100 tokens, 18 blocks."""
    written = {
        "model": "qwen3-14b",
        "gpu": "a800",
        "trajectories": {"preset": "search", "prompts": 8, "group": 2, "budget": {"turns": 6, "context": context}},
        "rollout": [{"tp": 1, "replicas": 4}, {"tp": 2, "replicas": 2}],
        "training": {"tp": 4, "dp": 2, "micro_batch_tokens": 49152},
        "engine": {"block_size": BLOCK, "num_gpu_blocks": blocks, "max_num_seqs": 8, "max_num_batched_tokens": 512},
        "cost": {"source": "analytic"},
        "steps": 2,
        "seed": 3,
    }
    return posttrain_from_dict(written | more, "p.yaml")


@pytest.mark.parametrize(("mode", "tail", "router", "pool", "planner"), CASES)
def test_trajectories_that_no_engine_has_blocks_for_are_refused(
    mode: str, tail: Any, router: str, pool: str, planner: str
) -> None:
    small = scenario(8, mode=mode, tail=tail, router=router, pool=pool, planner=planner)
    with pytest.raises(UserError, match=r"^p.yaml: trajectory \S+ comes to .* KV blocks .* the engine has 7;"):
        drive(small)


@pytest.mark.parametrize(("mode", "tail", "router", "pool", "planner"), CASES)
def test_engines_with_barely_enough_blocks_finish_all_trajectories(
    mode: str, tail: Any, router: str, pool: str, planner: str
) -> None:
    """One trajectory fills an engine, so that others are preempted, moved and begun again all the time."""
    tight = scenario(19, mode=mode, tail=tail, router=router, pool=pool, planner=planner)
    found = [step.samples for step in drive(tight).loop.record.steps]
    least = 2 if tight.tail.kind == "partial" else 16  # which trains on the groups that are complete
    assert len(found) == 2 and all(least <= samples <= 16 for samples in found)


def test_a_recorded_trajectory_is_refused_before_the_run(tmp_path: Path) -> None:
    turns = [{"generated": 50, "tool": "a", "returned": 20, "latency": 1.0}, {"generated": 3000}]
    rows = [{"id": f"{i}", "task": f"t{i % 2}", "prompt_tokens": 10, "turns": turns} for i in range(4)]
    file = tmp_path / "long.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    long = scenario(19, trajectories={"file": str(file), "prompts": 2, "group": 2})
    with pytest.raises(UserError, match=r"p.yaml: trajectory 0 comes to 3,080 tokens, .* needs 49 KV blocks"):
        set_up_posttrain(long)


def test_recorded_prompts_and_turns_of_no_tokens_count_as_one(tmp_path: Path) -> None:
    """As lengths of 0 do in traces of requests. Files for estimators often have no prompts."""
    turns = [{"generated": 0, "tool": "a", "returned": 0, "latency": 0.0}, {"generated": 30}]
    rows = [{"id": f"{i}", "task": f"t{i % 2}", "turns": turns} for i in range(4)]
    file = tmp_path / "short.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    short = scenario(19, trajectories={"file": str(file), "prompts": 2, "group": 4})
    steps = drive(short).loop.record.steps
    assert [step.tokens for step in steps] == [8 * 31, 8 * 31]


def test_planners_leave_out_engines_without_room() -> None:
    """With so little memory an engine of one GPU has the weights and next to no cache."""
    scarce = scenario(
        19,
        context=4000,
        planner="libra",
        rollout=[{"tp": 2, "replicas": 4}],
        engine={"block_size": BLOCK, "gpu_memory_utilization": 0.37},
    )
    kinds = set_up_posttrain(scarce).kinds
    assert 1 not in kinds and {2, 4} <= set(kinds)


@pytest.mark.parametrize("budget", [8, 9, 64, 512, 1000, 1087, 8192])
def test_planners_know_engines_of_any_token_budget(budget: int) -> None:
    engine = {"max_num_seqs": 8, "max_num_batched_tokens": budget}
    model = replica_model(EngineKind.of(prepare("qwen3-14b", "a800", 1, engine)))
    assert 0 < model.launch < 1


def test_a_rejected_turn_ends_the_run_with_the_engines_reason() -> None:
    """A second net, should an engine reject what was thought to fit."""
    engine = {"block_size": BLOCK, "num_gpu_blocks": 4, "max_num_seqs": 8}
    kind = EngineKind.of(prepare("qwen3-14b", "a800", 1, engine))
    clock: Environment[Happening] = Environment([lambda event: None] * 7)
    turns = Turns(BLOCK, {1: kind.limits})
    replicas = Replicas({1: kind}, turns.names, clock)
    replicas.add(0, 1, 0.0)
    attempt = Attempt(Trajectory("a", "a", "a", (Turn(10),), prompt_tokens=1000), 0, 0.0)
    request = Request(0, 0.0, 1000, 10, 0)
    replicas.requests[0] = attempt
    replicas.submit(0, request, 0.0)
    with pytest.raises(UserError, match=r"trajectory a: a turn of 1,010 tokens was rejected .* on an empty engine"):
        replicas.run_to(0, 10.0)


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("blocks", [1, 2, 7, 100])
@pytest.mark.parametrize("drafts", [0, 3])
def test_the_longest_request_is_served_and_one_token_more_is_not(block_size: int, blocks: int, drafts: int) -> None:
    limits = Limits(blocks, 1000, block_size, speculative_tokens=drafts)
    longest = limits.longest()
    assert longest == 1 or all(limits.refusal(longest - n, n) is None for n in range(1, longest))
    assert longest == limits.max_model_len or limits.refusal(longest, 1) is not None


def test_a_run_without_progress_ends() -> None:
    clock: Environment[tuple[float, int, int]] = Environment([lambda event: clock.schedule((1.0, 0, event[2] + 1))])
    clock.schedule((1.0, 0, 0))
    clock.most_at_once = 1000
    with pytest.raises(RuntimeError, match="events at second 1, and no end"):
        clock.run()
