"""The lower bound on a run's time: no run is faster, whatever its policies, and it is not far below a good one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import UserError
from steelyard.posttrain.ceiling import ceiling
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.least_work import LeastWork
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.run import posttrain
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.records import Trajectory
from steelyard.scenario import posttrain_from_dict
from support.whole_record import WholeRecord

SEARCH = {"preset": "search", "prompts": 6, "group": 4}
MATH = {"preset": "math", "prompts": 6, "group": 4}
ENGINES: list[list[dict[str, int]]] = [
    [{"tp": 1, "replicas": 2}],
    [{"tp": 2, "replicas": 2}, {"tp": 1, "replicas": 1}],
    [{"tp": 4, "replicas": 1}],
    [{"tp": 8, "replicas": 1}],
]
TRAINING: list[dict[str, Any]] = [
    {"tp": 8},
    {"tp": 4, "dp": 2},
    {"tp": 2, "pp": 2, "dp": 2},
    {"dp": 8, "zero": 3, "weighed": True},
    {"tp": 4, "cp": 2, "recompute": "selective"},
]


def written(**more: Any) -> dict[str, Any]:
    scenario = {
        "model": "qwen3-14b",
        "gpu": "a800",
        "trajectories": SEARCH,
        "rollout": ENGINES[1],
        "training": TRAINING[0],
        "engine": {"block_size": 64, "max_num_seqs": 64},
        "estimator": "blind",
        "router": "least-outstanding",
        "steps": 3,
    }
    return scenario | more


def ran(scenario: dict[str, Any]) -> tuple[PosttrainSetup, WholeRecord]:
    setup, record = set_up_posttrain(posttrain_from_dict(scenario)), WholeRecord()
    Loop(setup, core_settings(setup).core(), record=record).run()
    return setup, record


def least(setup: PosttrainSetup, ended: list[Trajectory], batches: list[list[Trajectory]]) -> float:
    """Seconds that all GPUs take at least to roll out and to train on these."""
    work = LeastWork(setup.kinds, [setup.training])
    trained = sum(work.training(np.array([each.tokens for each in batch])) for batch in batches)
    return (work.rollout(ended) + trained) / setup.scenario.gpus


@settings(max_examples=40)
@given(
    st.sampled_from(["split", "one-step-off", "asynchronous", "colocated"]),
    st.sampled_from(["none", "over-sampling", "divided"]),
    st.sampled_from(["least-outstanding", "cost-aware", "sticky"]),
    st.sampled_from(ENGINES),
    st.sampled_from(TRAINING),
    st.sampled_from([SEARCH, MATH]),
    st.booleans(),
    st.integers(0, 999),
)
def test_no_run_is_faster_than_its_work(
    mode: str,
    tail: str,
    router: str,
    engines: list[dict[str, int]],
    training: dict[str, Any],
    trajectories: dict[str, Any],
    streaming: bool,
    seed: int,
) -> None:
    gpus = sum(each["tp"] * each["replicas"] for each in engines)
    if mode == "colocated":
        engines, streaming = [{"tp": 2, "replicas": 4}], False
    chosen = {"mode": mode, "tail": tail, "router": router, "rollout": engines, "training": training, "seed": seed}
    try:
        layout = {"micro_batch_tokens": 40960, **training}
        setup, record = ran(written(**chosen | {"training": layout}, trajectories=trajectories, streaming=streaming))
    except UserError:
        return  # a combination that cannot be run
    batches = [[each.trajectory for each in batch] for batch in record.batches]
    bound = least(setup, [each.trajectory for each in record.samples], batches)
    assert 0 < bound <= record.steps[-1].synced
    assert setup.scenario.gpus == (8 if mode == "colocated" else gpus + setup.training.layout.gpus)


@pytest.mark.parametrize(("preset", "share"), [("search", 0.6), ("math", 0.5)])
def test_a_run_that_keeps_its_gpus_busy_is_near_its_bound(preset: str, share: float) -> None:
    """One engine that is always full beside training that never waits: what is left is what the bound leaves out."""
    trajectories = {"preset": preset, "prompts": 16, "group": 8}
    engines = [{"tp": 1, "replicas": 1 if preset == "search" else 4}]
    layout = {"tp": 8, "micro_batch_tokens": 40960}
    run = {"mode": "asynchronous", "rollout": engines, "training": layout, "trajectories": trajectories, "steps": 6}
    setup, record = ran(written(**run))
    busy = sum(step.trained - step.begun for step in record.steps) / record.steps[-1].synced
    batches = [[each.trajectory for each in batch] for batch in record.batches]
    training = least(setup, [], batches) * setup.scenario.gpus / setup.training.layout.gpus
    assert training >= share * busy * record.steps[-1].synced


@pytest.mark.parametrize("mode", ["split", "one-step-off", "asynchronous", "colocated"])
@pytest.mark.parametrize("planner", ["given", "simulated"])
def test_no_way_to_run_a_scenario_is_above_its_ceiling(mode: str, planner: str) -> None:
    engines = [{"tp": 2, "replicas": 4}] if mode == "colocated" else ENGINES[1]
    written_so = written(mode=mode, rollout=engines, planner="given" if mode == "colocated" else planner, steps=4)
    scenario = posttrain_from_dict(written_so)
    most = ceiling(scenario)
    assert 0.05 * most < posttrain(scenario).summary["tokens_per_second"] <= most


def test_longer_trajectories_are_more_work() -> None:
    setup = set_up_posttrain(posttrain_from_dict(written()))
    work = LeastWork(setup.kinds, [setup.training])
    short, long = (
        list(set_up_posttrain(posttrain_from_dict(written(trajectories=each))).tasks.step(0)) for each in (SEARCH, MATH)
    )
    assert 0 < work.rollout(short) < work.rollout(long)
    assert work.rollout(short + long) == pytest.approx(work.rollout(short) + work.rollout(long))
