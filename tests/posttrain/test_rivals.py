"""What each other system is known for changes a run in the direction that its authors claim, all else equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from steelyard.posttrain.compare_choices import RIVALS
from steelyard.posttrain.result import PosttrainResult
from steelyard.posttrain.run import posttrain
from steelyard.scenario import posttrain_from_dict

TRAINING = {"dp": 2, "micro_batch_tokens": 49152}
SMALL: dict[str, Any] = {
    "name": "small",
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "math", "prompts": 16, "group": 4},
    "mode": "split",
    "rollout": [{"tp": 1, "replicas": 2}],
    "training": TRAINING,
    "engine": {"max_num_seqs": 8, "block_size": 64},
    "router": "sticky",
    "estimator": "blind",
    "steps": 8,
}
SHARED = {"mode": "colocated", "rollout": [{"tp": 1, "replicas": 4}], "training": {**TRAINING, "dp": 4}}
FREE = {"mode": "asynchronous", "staleness": 2}
AS_THEY_END = {**FREE, "admission": {"late": "train"}}
FEW_SEATS = {
    **SHARED,
    "engine": {"max_num_seqs": 3, "block_size": 64},
    "trajectories": {"preset": "math", "prompts": 8, "group": 8},
    "steps": 4,
}
DEGREES = {
    "model": "qwen3-14b",
    "rollout": [{"tp": 1, "replicas": 4}, {"tp": 4, "replicas": 1}],
    "training": {**TRAINING, "tp": 4},
    "engine": {"max_num_seqs": 32, "block_size": 64},
    "steps": 4,
}
FEW_TRAIN = {
    **FREE,
    "rollout": [{"tp": 1, "replicas": 7}],
    "training": {**TRAINING, "dp": 1},
    "trajectories": {"preset": "search", "prompts": 32, "group": 8},
    "engine": {"max_num_seqs": 128, "block_size": 64},
    "steps": 10,
}


def run(*changes: dict[str, Any]) -> PosttrainResult:
    written = dict(SMALL)
    for change in changes:
        written |= change
    return posttrain(posttrain_from_dict(written))


def speed(result: PosttrainResult) -> float:
    return float(result.summary["tokens_per_second"])


def ages(result: PosttrainResult) -> dict[int, int]:
    return {int(age): count for age, count in result.summary["staleness"].items()}


def mean_age(result: PosttrainResult) -> float:
    found = ages(result)
    return sum(age * count for age, count in found.items()) / sum(found.values())


GENERATES = {"training": {**TRAINING, "generates": True}}
FASTER: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "verl, co-located": ({}, SHARED, {}),
    "verl, one step off": ({}, {"mode": "one-step-off"}, {}),
    "verl, fully asynchronous": ({}, AS_THEY_END, {"mode": "one-step-off"}),
    "slime": ({}, AS_THEY_END, {**FREE, "admission": {"late": "wait"}}),
    "Heddle": (DEGREES, {"router": "heddle", "estimator": "suffix"}, {}),
    "RollPacker": (SHARED, {"tail": "tail-batching"}, {}),
    "Seer": (FEW_SEATS, {"tail": {"kind": "divided", "chunk": 2048}}, {}),
    "APRIL": (SHARED, {"tail": "over-sampling", "staleness": 2}, {}),
    "StreamRL": ({"mode": "one-step-off", "rollout": [{"tp": 1, "replicas": 4}]}, {"streaming": True}, {}),
    "DynaRL": (FEW_TRAIN, {"planner": "proportional"}, {}),
    "BiDiRL": (FEW_TRAIN, {"pool": "payoff"}, {}),
    "BiDiRL, back": (AS_THEY_END, {**GENERATES, "pool": "payoff"}, {"pool": "payoff"}),
    "verl, fully asynchronous, with its controller": (AS_THEY_END, GENERATES, {}),
    "miles": (AS_THEY_END, GENERATES, {}),
    "Libra": (FEW_TRAIN, {"planner": "libra-published"}, {}),
    "Libra, cost corrected": (FEW_TRAIN, {"planner": "libra"}, {}),
    "Libra, no planner": (FEW_TRAIN, {"pool": "thresholds"}, {}),
    "Libra, no planner, no pool": (
        DEGREES,
        {"router": "c-mlfq", "estimator": "trie"},
        {"router": "least-outstanding"},
    ),
}
"""What both runs share, what the system does, and what is done instead."""


@pytest.mark.parametrize("name", FASTER)
def test_its_mechanism_makes_it_faster(name: str) -> None:
    both, its, without = FASTER[name]
    assert speed(run(both, its)) > 1.02 * speed(run(both, without))


LIMITED = ("AReaL", "SkyRL", "miles")
OTHERWISE = ("ROLL Flash", "Kimi partial", "Laminar", "Libra, no C-MLFQ")  # tests of their own, below


def test_every_system_is_tested() -> None:
    tested = {*FASTER, *LIMITED, *OTHERWISE} - {"BiDiRL, back", "verl, fully asynchronous, with its controller"}
    assert tested == {each.name for each in RIVALS}


@pytest.mark.parametrize("name", LIMITED)
def test_a_limit_on_what_runs_at_once_makes_samples_fresher(name: str) -> None:
    (rival,) = [each for each in RIVALS if each.name == name]
    tried = dict(rival.open)["concurrency"]
    samples = [None if each is None else int(each * 64) for each in tried]
    found = [run(AS_THEY_END, {"admission": {"late": "train", "concurrency": each}}) for each in samples]
    free, *limited = map(mean_age, found)
    assert all(each < free for each in limited[:1])


def test_roll_flash_keeps_every_sample_within_the_bound_by_giving_up_others() -> None:
    dropping, training = (run(FREE, {"admission": {"late": late}}) for late in ("drop", "train"))
    assert max(ages(dropping)) <= 2 < max(ages(training))
    assert dropping.trajectories["given_up"].sum() > training.trajectories["given_up"].sum() == 0


def test_with_a_budget_of_tokens_steps_do_not_wait_for_the_longest() -> None:
    partial = run(SHARED, {"tail": {"kind": "partial", "budget": 2048}, "staleness": 2})
    whole = run(SHARED)
    assert partial.summary["step_seconds"]["total"] < whole.summary["step_seconds"]["total"]


def test_laminar_gathers_the_last_trajectories_which_frees_engines_and_costs_next_to_nothing() -> None:
    engines = {"rollout": [{"tp": 1, "replicas": 4}]}
    gathering, spread = run(engines, {"tail": "repack"}), run(engines)
    assert gathering.summary["tail"]["freed_gpu_seconds"] > 0
    assert speed(gathering) > 0.98 * speed(spread)


def test_without_c_mlfq_libra_keeps_its_plan_and_loses_its_queues() -> None:
    """Its ablation differs from the corrected one in the router alone."""
    whole, without = (
        next(each for each in RIVALS if each.name == name).choice for name in ("Libra, cost corrected", OTHERWISE[-1])
    )
    assert replace(without, router=whole.router) == whole
    both = {**DEGREES, "estimator": "trie"}
    assert speed(run(both, {"router": "c-mlfq"})) > speed(run(both, {"router": without.router}))
