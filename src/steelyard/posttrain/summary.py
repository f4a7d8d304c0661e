"""What a post-training run comes to: where the time of a step went, what GPUs did meanwhile, how old samples were."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.engine import Engine
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.record import LoopRecord
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.workload.trajectories.drift import Learning

Floats = NDArray[np.float64]


def summarise_posttrain(setup: PosttrainSetup, loop: Loop) -> dict[str, Any]:
    """The headline figures, ready for JSON."""
    record, scenario = loop.record, setup.scenario
    seconds = record.steps[-1].synced
    samples = sum(step.samples for step in record.steps)
    tokens = sum(step.tokens for step in record.steps)
    return {
        "name": scenario.name,
        "mode": scenario.mode,
        "gpus": scenario.gpus,
        "rollout_gpus": scenario.rollout_gpus,
        "training_gpus": scenario.training.gpus,
        "steps": len(record.steps),
        "seconds": seconds,
        "samples": samples,
        "samples_per_second": samples / seconds,
        "tokens_per_second": tokens / seconds,
        "step_seconds": _step_seconds(setup, record),
        "training": _training(record),
        "gpu_time": _gpu_time(setup, loop, seconds),
        "trajectory_seconds": _spread(np.array([each.ended - each.begun for each in record.samples])),
        "tail_share": _tail(record),
        "staleness": {str(age): count for age, count in sorted(_ages(record).items())},
        "moves": loop.stage.moves,
        "moved_tokens": loop.stage.moved_tokens,
        **_learning(setup, record),
    }


def _step_seconds(setup: PosttrainSetup, record: LoopRecord) -> dict[str, float]:
    """A step from the trainer's point of view, in the mean: waiting for samples, giving GPUs up, training, sync."""
    steps = record.steps
    waited = [step.begun - setup.before_training - step.waited_from for step in steps]
    return {
        "total": steps[-1].synced / len(steps),
        "waiting": float(np.mean(waited)),
        "handing_over": setup.before_training,
        "training": float(np.mean([step.trained - step.begun for step in steps])),
        "sync": setup.sync,
    }


def _training(record: LoopRecord) -> dict[str, float]:
    parts = [step.time.split.by_part() for step in record.steps]
    return {name: float(np.mean([each[name] for each in parts])) for name in parts[0]}


def _gpu_time(setup: PosttrainSetup, loop: Loop, seconds: float) -> dict[str, dict[str, float]]:
    """Shares of both stages' GPU time: busy, in a bubble (training only), idle."""
    scenario, stage = setup.scenario, loop.stage
    rolled = sum(stage.tp[number] * busy_seconds(engine, seconds) for number, engine in stage.engines.items())
    splits = [step.time.split for step in loop.record.steps]
    waits = sum(split.bubble + split.imbalance for split in splits)
    trained = sum(split.total for split in splits) - waits
    busy = rolled / (seconds * scenario.rollout_gpus)
    return {
        "rollout": {"busy": busy, "idle": 1 - busy},
        "training": {
            "busy": trained / seconds,
            "bubble": waits / seconds,
            "idle": 1 - (trained + waits) / seconds,
        },
    }


def busy_intervals(engine: Engine) -> tuple[Floats, Floats]:
    """When an engine had something to run: from each restart to the last end before the next."""
    log = engine.log
    if not log.restarts:
        return np.empty(0), np.empty(0)
    first, start = (np.array(column) for column in zip(*log.restarts, strict=True))
    last = np.append(first[1:].astype(int) - 1, len(log.ends) - 1)
    return start, np.array(log.ends)[last]


def busy_seconds(engine: Engine, until: float) -> float:
    """Up to a second."""
    start, end = busy_intervals(engine)
    return float(np.maximum(np.minimum(end, until) - np.minimum(start, until), 0.0).sum())


def _spread(values: Floats) -> dict[str, float]:
    p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(values.max())}


def _tail(record: LoopRecord) -> float:
    """Of the time that a batch was rolled out, the share in which its last tenth was still under way; in the mean."""
    batches: dict[float, list[float]] = {}
    for each in record.samples:
        batches.setdefault(each.begun, []).append(each.ended)
    shares = [(max(ends) - float(np.percentile(ends, 90))) / (max(ends) - begun) for begun, ends in batches.items()]
    return float(np.mean(shares))


def _ages(record: LoopRecord) -> Counter[int]:
    return Counter(age for step in record.steps for age in step.staleness)


def _learning(setup: PosttrainSetup, record: LoopRecord) -> dict[str, Any]:
    """Reward by the end of each step, where the scenario says how it is learnt."""
    spec = setup.scenario.trajectories.learning
    if spec is None:
        return {}
    learning, effective, rewards = Learning(spec), 0.0, []
    for step in record.steps:
        effective += learning.effective(step.staleness)
        rewards.append([step.synced, learning.reward(effective)])
    return {"reward": rewards}
