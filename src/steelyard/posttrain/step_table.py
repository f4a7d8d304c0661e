"""The table of training steps: times by stage, GPUs by role, samples, cost, reward, changes of roles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from steelyard.posttrain.held import Held, busy_between, held_between
from steelyard.posttrain.record import RoleChange, StepRecord
from steelyard.posttrain.role_figures import Floats
from steelyard.records.columns import Column

_HOUR = 3600.0


def step_table(
    records: Sequence[StepRecord],
    changes: Sequence[RoleChange],
    held: Sequence[Held],
    trajectories: Iterable[Mapping[str, Column]],
    summary: Mapping[str, Any],
) -> dict[str, Column]:
    """One row per training step, from the rows of the other table in parts. ``waiting``, ``handing_over``, ``training``
    and ``sync`` add up to ``seconds``. Without a learning curve rewards are NaN."""
    edges = np.array([0.0, *(each.synced for each in records)])
    seconds = np.diff(edges)
    rolled = _rolled_out(trajectories, len(records))
    reward = [reward for _, reward in summary["reward"]] if "reward" in summary else [np.nan] * len(records)
    return {
        "step": _ints(each.step for each in records),
        "begun": edges[:-1],
        "seconds": seconds,
        "waiting": _floats(each.begun - each.handing_over - each.waited_from for each in records),
        "handing_over": _floats(each.handing_over for each in records),
        "training": _floats(each.trained - each.begun for each in records),
        "sync": _floats(each.sync for each in records),
        **_parts_of_training(records),
        **rolled,
        "train_begun": _floats(each.begun for each in records),
        "trained": _floats(each.trained for each in records),
        "synced": edges[1:],
        "samples": _ints(each.samples for each in records),
        "tokens": _ints(each.tokens for each in records),
        "staleness_mean": _floats(float(np.mean(each.staleness)) for each in records),
        "staleness_max": _ints(max(each.staleness) for each in records),
        "rollout_gpus": _ints(each.rollout_gpus for each in records),
        "training_gpus": _ints(each.training_gpus for each in records),
        **_gpu_seconds(records, held, edges),
        "usd": seconds * summary["gpus"] * summary["cost"]["usd_per_gpu_hour"] / _HOUR,
        "reward": _floats(reward),
        **_changes(changes, len(records)),
    }


def _parts_of_training(records: Sequence[StepRecord]) -> dict[str, Column]:
    parts = [each.time.split.by_part() for each in records]
    return {f"training_{name}": _floats(part[name] for part in parts) for name in parts[0]}


def _rolled_out(trajectories: Iterable[Mapping[str, Column]], steps: int) -> dict[str, Column]:
    """When the samples of each step were rolled out: from the first that began to the last that ended."""
    first, last = np.full(steps, np.inf), np.full(steps, -np.inf)
    for part in trajectories:
        trained = part["step"] >= 0
        step = part["step"][trained]
        np.minimum.at(first, step, part["begun"][trained])
        np.maximum.at(last, step, part["ended"][trained])
    return {"rollout_from": first, "rollout_until": last}


def _gpu_seconds(records: Sequence[StepRecord], held: Sequence[Held], edges: Floats) -> dict[str, Column]:
    """GPU-seconds of each role within each step, and how many of them were busy. Bubbles are waits within training."""
    waits = _floats(each.training_gpus * (each.time.split.bubble + each.time.split.imbalance) for each in records)
    spent = _floats(each.training_gpus * each.time.split.total for each in records)
    return {
        "rollout_gpu_seconds": held_between(held, "rollout", edges),
        "rollout_busy_gpu_seconds": busy_between(held, edges),
        "training_gpu_seconds": held_between(held, "training", edges),
        "training_busy_gpu_seconds": spent - waits,
        "training_bubble_gpu_seconds": waits,
    }


def _changes(changes: Sequence[RoleChange], steps: int) -> dict[str, Column]:
    """The changes of roles after each step, if any. Gains are seconds of a step."""
    names: list[list[str]] = [[] for _ in range(steps)]
    figures = {name: np.zeros(steps) for name in ("change_seconds", "gain_predicted", "gain_realised")}
    for each in changes:
        names[each.step].append(f"{each.what}: {each.outcome}")
        figures["change_seconds"][each.step] += each.seconds
        figures["gain_predicted"][each.step] += each.predicted
        figures["gain_realised"][each.step] += np.nan if each.realised is None else each.realised
    return {"change": np.array(["; ".join(each) for each in names], dtype=object), **figures}


def _floats(values: Any) -> Floats:
    return np.array(list(values), dtype=np.float64)


def _ints(values: Any) -> Column:
    return np.array(list(values), dtype=np.int64)
