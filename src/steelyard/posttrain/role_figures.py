"""What GPUs did in their roles, and what changes of roles gained."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.engine import BriefLog
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.roles import Role

Floats = NDArray[np.float64]


def gpu_time(loop: Loop, seconds: float) -> dict[str, dict[str, float]]:
    """Shares of each stage's GPU time: busy, in a bubble (training only), idle."""
    scenario = loop.setup.scenario
    rolled = sum(
        len(each.gpus) * busy_seconds(each.log, seconds) for each in loop.roles.tenures if each.log is not None
    )
    busy = rolled / role_seconds(loop, "rollout", seconds)
    usual = scenario.training.gpus
    had = role_seconds(loop, "training", seconds, usual)
    shares = [(step.training_gpus / usual, step.time.split) for step in loop.record.steps]
    waits = sum(gpus * (split.bubble + split.imbalance) for gpus, split in shares)
    trained = sum(gpus * split.total for gpus, split in shares) - waits
    return {
        "rollout": {"busy": busy, "idle": 1 - busy},
        "training": {"busy": trained / had, "bubble": waits / had, "idle": 1 - (trained + waits) / had},
    }


def role_seconds(loop: Loop, role: Role, end: float, unit: int = 1) -> float:
    """GPU-seconds in a role up to ``end``, in units of ``unit`` GPUs."""
    spans: Counter[tuple[float, float]] = Counter()
    for each in loop.roles.tenures:
        if each.role == role:
            spans[each.since, min(each.until, end)] += len(each.gpus)
    return sum(gpus / unit * max(0.0, until - since) for (since, until), gpus in spans.items())


def role_figures(loop: Loop, seconds: float) -> dict[str, Any]:
    """GPUs by role and what changes gained; empty if roles cannot change."""
    scenario = loop.setup.scenario
    if scenario.planner == "given" and scenario.pool == "none":
        return {}
    both = role_seconds(loop, "rollout", seconds) + role_seconds(loop, "training", seconds)
    return {
        "planner": scenario.planner,
        "pool": scenario.pool,
        "gpus_by_step": [[step.rollout_gpus, step.training_gpus] for step in loop.record.steps],
        "between_roles": 0.0 if loop.roles.shared else max(0.0, 1 - both / (loop.roles.gpus * seconds)),
        "reallocations": [
            {
                "step": each.step,
                "what": each.what,
                "outcome": each.outcome,
                "seconds": each.seconds,
                "predicted": each.predicted,
                "realised": each.realised,
                "predicted_step": each.predicted_step,
                "measured_step": None if each.realised is None else each.before - each.realised,
            }
            for each in loop.record.reallocations
        ],
    }


def busy_seconds(log: BriefLog, until: float) -> float:
    """Busy seconds of an engine up to ``until``."""
    start, end = log.busy()
    return float(np.maximum(np.minimum(end, until) - np.minimum(start, until), 0.0).sum())
