"""Time to a reward under the learning model: within the run, beyond it, and with samples that count less."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.posttrain.record import StepRecord
from steelyard.posttrain.reward import reward_figures
from steelyard.posttrain.run import drive
from steelyard.scenario import posttrain_from_dict
from steelyard.scenario.rollouts import LearningSpec, trajectories_spec
from steelyard.workload.trajectories import Learning


@cache
def steps() -> tuple[StepRecord, ...]:
    """Four steps of 16 samples, the later ones stale."""
    written = {
        "model": "qwen2.5-0.5b",
        "gpu": "a800",
        "trajectories": {"preset": "search", "prompts": 4, "group": 4},
        "mode": "one-step-off",
        "rollout": [{"tp": 1, "replicas": 2}],
        "training": {"dp": 2},
        "steps": 4,
    }
    return tuple(drive(posttrain_from_dict(written)).loop.record.steps)


def figures(**more: Any) -> dict[str, Any]:
    return reward_figures(LearningSpec(samples=100, start=0.2, best=0.6, **more), steps())


def test_without_a_learning_model_nothing_is_said() -> None:
    assert reward_figures(None, steps()) == {}
    assert "time_to_reward" not in figures()


def test_a_reward_within_the_run_is_reached_when_those_weights_are_there() -> None:
    reward = figures()["reward"]
    assert reward[0] == [
        steps()[0].synced,
        pytest.approx(Learning(LearningSpec(samples=100, start=0.2, best=0.6)).reward(16)),
    ]
    between = (reward[1][1] + reward[2][1]) / 2
    found = figures(target=between)["time_to_reward"]
    assert (found["reward"], found["seconds"], found["reached"]) == (between, steps()[2].synced, True)


def test_beyond_the_run_it_goes_on_at_the_rate_of_settled_steps() -> None:
    found = figures(target=0.5)["time_to_reward"]
    needed = Learning(LearningSpec(samples=100, start=0.2, best=0.6)).samples_for(0.5)
    rate = 16 / (steps()[2].synced - steps()[1].synced)  # of four steps the third is the settled one
    assert not found["reached"]
    assert found["seconds"] == pytest.approx(steps()[3].synced + (needed - 64) / rate)


def test_stale_samples_take_longer_to_a_reward() -> None:
    fresh, stale = (figures(target=0.5, **more)["time_to_reward"]["seconds"] for more in ({}, {"stale_half": 1}))
    end = steps()[3].synced
    assert stale - end > 2 * (fresh - end)  # half as fast, and behind at the end of the run


def test_another_penalty_changes_the_time_and_no_penalty_does_not() -> None:
    found = figures(target=0.5, stale_half=1)["time_to_reward"]
    assert found["penalty"]["half"] < found["seconds"] < found["penalty"]["double"]
    assert set(figures(target=0.5)["time_to_reward"]["penalty"].values()) == {
        figures(target=0.5)["time_to_reward"]["seconds"]
    }


def test_a_point_of_reward_costs_the_gpus_until_the_target() -> None:
    spec = LearningSpec(samples=100, start=0.2, best=0.6, target=0.5)
    found = reward_figures(spec, steps(), usd_per_second=3.0)["time_to_reward"]
    assert found["usd_per_point"] == pytest.approx(3.0 * found["seconds"] / 30)


def test_what_stale_samples_are_worth_is_counted_once_settled() -> None:
    fresh, stale = (figures(**more)["effective"] for more in ({}, {"stale_half": 1}))
    step = steps()[2]
    seconds = step.synced - steps()[1].synced
    assert fresh["samples_per_second"] == pytest.approx(16 / seconds)
    assert fresh["tokens_per_second"] == pytest.approx(step.tokens / seconds)
    worth = sum(0.5**age for age in step.staleness) / 16
    assert worth < 1 and stale["samples_per_second"] == pytest.approx(worth * fresh["samples_per_second"])


@pytest.mark.parametrize("target", [0.1, 0.25, 0.5])
def test_a_target_out_of_reach_is_refused(target: float) -> None:
    with pytest.raises(UserError, match=r"learning.target: must lie between start \(0.25\) and best \(0.5\)"):
        trajectories_spec(
            {"preset": "search", "learning": {"samples": 1, "start": 0.25, "best": 0.5, "target": target}}
        )
