"""Reward over time, if the scenario has a learning curve (an assumption; docs/trajectories.md)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from steelyard.posttrain.record import StepRecord
from steelyard.scenario.rollouts import LearningSpec
from steelyard.workload.trajectories.drift import Learning


def reward_figures(spec: LearningSpec | None, steps: Sequence[StepRecord]) -> dict[str, Any]:
    """Reward after each step's weight sync, and the time to the target reward."""
    if spec is None:
        return {}
    learning, ends = Learning(spec), [step.synced for step in steps]
    effective = list(accumulate(learning.effective(step.staleness) for step in steps))
    found: dict[str, Any] = {
        "reward": [[end, learning.reward(samples)] for end, samples in zip(ends, effective, strict=True)]
    }
    if spec.target is not None:
        seconds, reached = _time_to(learning.samples_for(spec.target), ends, effective)
        found["time_to_reward"] = {"reward": spec.target, "seconds": seconds, "reached": reached}
    return found


def _time_to(needed: float, ends: Sequence[float], effective: Sequence[float]) -> tuple[float, bool]:
    """When ``needed`` effective samples were trained on. Extrapolated at the rate of the second half of the run."""
    for end, samples in zip(ends, effective, strict=True):
        if samples >= needed:
            return end, True
    half = len(ends) // 2
    before_end, before_samples = (ends[half - 1], effective[half - 1]) if half else (0.0, 0.0)
    rate = (effective[-1] - before_samples) / (ends[-1] - before_end)
    return ends[-1] + (needed - effective[-1]) / rate, False
