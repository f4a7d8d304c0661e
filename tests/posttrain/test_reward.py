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
    assert figures(target=between)["time_to_reward"] == {
        "reward": between,
        "seconds": steps()[2].synced,
        "reached": True,
    }


def test_beyond_the_run_it_goes_on_at_the_rate_of_the_later_half() -> None:
    found = figures(target=0.5)["time_to_reward"]
    needed = Learning(LearningSpec(samples=100, start=0.2, best=0.6)).samples_for(0.5)
    rate = 32 / (steps()[3].synced - steps()[1].synced)
    assert not found["reached"]
    assert found["seconds"] == pytest.approx(steps()[3].synced + (needed - 64) / rate)


def test_stale_samples_take_longer_to_a_reward() -> None:
    fresh, stale = (figures(target=0.5, **more)["time_to_reward"]["seconds"] for more in ({}, {"stale_half": 1}))
    assert stale > 1.5 * fresh


@pytest.mark.parametrize("target", [0.1, 0.25, 0.5])
def test_a_target_out_of_reach_is_refused(target: float) -> None:
    with pytest.raises(UserError, match=r"learning.target: must lie between start \(0.25\) and best \(0.5\)"):
        trajectories_spec(
            {"preset": "search", "learning": {"samples": 1, "start": 0.25, "best": 0.5, "target": target}}
        )
