"""Reward over time, if the scenario has a learning curve (an assumption; docs/trajectories.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from steelyard.posttrain.record import StepRecord, settled_steps
from steelyard.scenario.rollouts import LearningSpec
from steelyard.workload.trajectories.drift import Learning

PENALTIES: Mapping[str, float] = {"half": 2.0, "double": 0.5}
"""Other assumptions about stale samples: factors on the staleness at which a sample counts half."""


def reward_figures(
    spec: LearningSpec | None, steps: Sequence[StepRecord], usd_per_second: float = 0.0
) -> dict[str, Any]:
    """Reward after each step's weight sync, how fast it rises once settled, and time and cost of the target."""
    if spec is None:
        return {}
    learning, ends = Learning(spec), [step.synced for step in steps]
    weights = [learning.effective(step.staleness) for step in steps]
    found: dict[str, Any] = {
        "reward": [[end, learning.reward(samples)] for end, samples in zip(ends, accumulate(weights), strict=True)],
        "effective": _effective(steps, weights),
    }
    if spec.target is not None:
        seconds, reached = time_to(spec, steps)
        points = 100 * (spec.target - spec.start)
        found["time_to_reward"] = {
            "reward": spec.target,
            "seconds": seconds,
            "reached": reached,
            "usd_per_point": usd_per_second * seconds / points,
            "penalty": {name: time_to(_penalised(spec, factor), steps)[0] for name, factor in PENALTIES.items()},
        }
    return found


def time_to(spec: LearningSpec, steps: Sequence[StepRecord]) -> tuple[float, bool]:
    """When the target is reached, and whether that is within the run. If not, at the rate of its settled steps."""
    assert spec.target is not None, "it is asked for"
    learning, ends = Learning(spec), [step.synced for step in steps]
    needed = learning.samples_for(spec.target)
    samples = 0.0
    weights = [learning.effective(step.staleness) for step in steps]
    for end, weight in zip(ends, weights, strict=True):
        samples += weight
        if samples >= needed:
            return end, True
    return ends[-1] + (needed - samples) / _effective(steps, weights)["samples_per_second"], False


def _effective(steps: Sequence[StepRecord], weights: Sequence[float]) -> dict[str, float]:
    """Samples and tokens of settled steps per second, stale ones counted as what they are worth."""
    settled = settled_steps(len(steps))
    before = steps[settled[0] - 1].synced if settled[0] else 0.0
    seconds = steps[settled[-1]].synced - before
    samples = sum(weights[step] for step in settled)
    tokens = sum(weights[step] / steps[step].samples * steps[step].tokens for step in settled)
    return {"samples_per_second": samples / seconds, "tokens_per_second": tokens / seconds}


def _penalised(spec: LearningSpec, factor: float) -> LearningSpec:
    return spec if spec.stale_half is None else spec.model_copy(update={"stale_half": spec.stale_half * factor})
