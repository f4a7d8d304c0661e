"""Plans made with a part of a cluster: what the part is, and that its plan is as good for the whole."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from steelyard.balance.plan import Plan
from steelyard.errors import UserError
from steelyard.posttrain.advice import plan
from steelyard.posttrain.part import enlarged, evenly
from steelyard.posttrain.plan_simulator import PlanSimulator
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.records import Trajectory, Turn
from steelyard.scenario import posttrain_from_dict

TWICE: dict[str, Any] = {
    "model": "qwen3-14b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 16, "group": 8},
    "mode": "one-step-off",
    "rollout": [{"tp": 2, "replicas": 8}],
    "training": {"tp": 4, "dp": 2, "micro_batch_tokens": 16384},
    "engine": {"block_size": 64},
}


def test_a_part_has_the_longest_and_of_the_others_one_of_each_kind() -> None:
    lengths = [30, 90, 10, 70, 50, 20, 80, 40]
    batch = [
        Trajectory(f"{prompt}/{sample}", f"{prompt}", f"{prompt}", (Turn(tokens + sample),))
        for prompt, tokens in enumerate(lengths)
        for sample in range(2)
    ]
    assert [each.id for each in evenly(batch, 2, 4)] == ["1/0", "1/1", "5/0", "5/1"]
    assert {lengths[int(each.prompt)] for each in evenly(batch, 2, 2)} == {90, 50, 30, 10}
    assert evenly(batch, 2, 1) == batch


@pytest.fixture(scope="module")
def part() -> Plan:
    return plan(posttrain_from_dict(TWICE), enough=64, draws=0).plan


def test_a_part_is_planned_for_where_there_are_trajectories_enough(part: Plan) -> None:
    assert re.fullmatch(r"(simulated best of|of) \d+.*; simulated at 1/2", part.why)
    for each in (part, part.runner_up):
        assert each is not None and each.training.gpus + each.rollout_gpus <= 24
        assert each.training.dp % 2 == 0 and all(replicas % 2 == 0 for replicas in each.replicas.values())


def test_a_parts_plan_is_as_good_for_the_whole(part: Plan) -> None:
    """Simulated with the whole cluster, it takes hardly longer than the plan that was found with it, and what it was
    said to take."""
    scenario = posttrain_from_dict(TWICE)
    simulations: list[int] = []
    whole = plan(scenario, enough=128, draws=0, watch=simulations.append).plan
    assert "simulated at" not in whole.why
    assert simulations == list(range(len(simulations))) and len(simulations) > 1
    simulator = PlanSimulator(set_up_posttrain(scenario, any_degree=True))
    batch = list(simulator.setup.tasks.step(0))
    seconds = simulator.step_seconds(part, [batch], batch[:64])
    assert seconds == pytest.approx(part.step, rel=0.1)
    assert seconds <= 1.1 * whole.step


def test_a_larger_plan_takes_what_training_on_the_whole_batch_takes() -> None:
    scenario = posttrain_from_dict(TWICE)
    whole = PlanSimulator(set_up_posttrain(scenario, any_degree=True))
    engines, training = [{"tp": 2, "replicas": 4}], {**TWICE["training"], "dp": 1}
    half = posttrain_from_dict({**TWICE, "rollout": engines, "training": training})
    part = PlanSimulator(set_up_posttrain(half, any_degree=True))
    batch = list(whole.setup.tasks.step(0))
    small = replace(part.written, step=1.0)
    assert enlarged(small, 2, part, whole, batch).step == whole.least_seconds(whole.written, [batch])


def test_clusters_that_are_too_large_to_plan_are_refused() -> None:
    huge = posttrain_from_dict(TWICE | {"rollout": [{"tp": 4, "replicas": 8_000}]})
    with pytest.raises(UserError, match="plans are made for up to 16,384"):
        PlanSimulator(set_up_posttrain(huge))
