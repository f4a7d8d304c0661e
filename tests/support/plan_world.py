"""A small cluster to plan for, and measured batches."""

from __future__ import annotations

import numpy as np

from steelyard.balance.plan import (
    Measured,
    ReplicaModel,
    TrainOption,
    World,
)
from steelyard.balance.route.speed import BucketSpeed
from steelyard.records import Ints


def replica(tp: int, weights: float = 0.016, rest: float = 0.002, capacity: int = 400_000) -> ReplicaModel:
    """One whose step reads weights over its GPUs, beside what no GPU more makes faster."""
    bare = weights / tp + rest
    rows = tuple((n, bare + n * 1e-4 / tp) for n in (1, 8, 64, 256))
    return ReplicaModel(BucketSpeed(rows, prefill=1e-4 / tp, move=1e-6, read=1e-7 / tp), 256, capacity * tp)


def batch(seed: int = 0, size: int = 256, median: float = 800.0, spread: float = 0.8) -> Measured:
    dice = np.random.default_rng(seed)
    generated = np.maximum(1, dice.lognormal(np.log(median), spread, size)).astype(np.int64)
    turns = dice.integers(1, 6, size)
    prompt = np.full(size, 200)
    context = prompt + generated + 300 * (turns - 1)
    return Measured(
        generated, (turns - 1) * dice.exponential(1.0, size), turns, prompt, context, turns * context // 2, 8
    )


def options(gpus: int) -> list[TrainOption]:
    return [TrainOption(f"dp{n}", n, dp=n, budget=1 << 20) for n in (1, 2, 4, 8, 16, 32) if n < gpus]


def train(option: TrainOption, lengths: Ints) -> float:
    return float(lengths.sum()) * 2e-3 / option.gpus + 1.0


def world(gpus: int = 16, **more: object) -> World:
    given = {"mode": "overlapped", "replicas": {tp: replica(tp) for tp in (1, 2, 4, 8)}, "train": train, **more}
    return World(gpus, options=given.pop("options", options(gpus)), **given)  # type: ignore[arg-type]
