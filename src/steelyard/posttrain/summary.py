"""The summary of a post-training run: step time by part, use of GPUs, staleness of samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.posttrain.loop import Loop
from steelyard.posttrain.record import LoopRecord
from steelyard.posttrain.reward import reward_figures
from steelyard.posttrain.role_figures import gpu_time, role_figures
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.tail_figures import tail_figures

Floats = NDArray[np.float64]


def summarise_posttrain(setup: PosttrainSetup, loop: Loop, gpus: int) -> dict[str, Any]:
    """The headline figures, ready for JSON. ``gpus`` are all that the run has; a plan may leave some unused."""
    record, scenario = loop.record, setup.scenario
    seconds, price = record.steps[-1].synced, _price(setup)
    over = record.trajectories.ended()
    begun, ended = over["begun"], over["ended"]
    samples = sum(step.samples for step in record.steps)
    tokens = sum(step.tokens for step in record.steps)
    return {
        "name": scenario.name,
        "mode": scenario.mode,
        "gpus": gpus,
        "rollout_gpus": scenario.rollout_gpus,
        "training_gpus": scenario.training.gpus,
        "steps": len(record.steps),
        "seconds": seconds,
        "samples": samples,
        "samples_per_second": samples / seconds,
        "tokens_per_second": tokens / seconds,
        "settled_tokens_per_second": record.settled,
        "settled_samples_per_second": record.settled_samples,
        "step_seconds": _step_seconds(setup, record),
        "training": _training(record),
        "gpu_time": gpu_time(loop, seconds),
        "trajectory_seconds": _spread(ended - begun),
        "tail_share": _tail(begun, ended),
        "staleness": {str(age): count for age, count in sorted(_ages(record).items())},
        "moves": loop.stage.moves.count,
        "moved_tokens": loop.stage.moves.tokens,
        "cost": _cost(price, gpus * seconds / 3600, tokens, len(record.steps)),
        "times_from": setup.times_from(loop.trainer.job.cost),
        **role_figures(loop, seconds),
        **tail_figures(loop),
        **reward_figures(scenario.trajectories.learning, record.steps, gpus * price / 3600),
    }


def _price(setup: PosttrainSetup) -> float:
    """US dollars for a GPU and hour."""
    own = setup.scenario.price_per_hour
    return setup.gpu.price_per_hour if own is None else own


def _cost(price: float, gpu_hours: float, tokens: int, steps: int) -> dict[str, float]:
    """US dollars for all GPUs of the run, idle or not."""
    usd = gpu_hours * price
    return {
        "usd_per_gpu_hour": price,
        "gpu_hours": gpu_hours,
        "usd": usd,
        "usd_per_step": usd / steps,
        "usd_per_million_tokens": usd / tokens * 1e6,
    }


def _step_seconds(setup: PosttrainSetup, record: LoopRecord) -> dict[str, float]:
    """The mean step from the trainer's point of view: waiting for samples, freeing GPUs, training, sync."""
    steps = record.steps
    waited = [step.begun - step.handing_over - step.waited_from for step in steps]
    return {
        "total": steps[-1].synced / len(steps),
        "waiting": float(np.mean(waited)),
        "handing_over": _mean([step.handing_over for step in steps]),
        "training": float(np.mean([step.trained - step.begun for step in steps])),
        "sync": _mean([step.sync for step in steps]),
    }


def _mean(values: Sequence[float]) -> float:
    """The mean. If all values are equal, exactly that value."""
    return values[0] if len(set(values)) == 1 else float(np.mean(values))


def _training(record: LoopRecord) -> dict[str, float]:
    parts = [step.time.split.by_part() for step in record.steps]
    return {name: float(np.mean([each[name] for each in parts])) for name in parts[0]}


def _spread(values: Floats) -> dict[str, float]:
    p50, p90, p99 = np.percentile(values, [50, 90, 99]).tolist()
    return {"mean": float(values.mean()), "p50": p50, "p90": p90, "p99": p99, "max": float(values.max())}


def _tail(begun: Floats, ended: Floats) -> float:
    """The mean share of a batch's rollout in which its last tenth was still running."""
    starts, first, batch, sizes = np.unique(begun, return_index=True, return_inverse=True, return_counts=True)
    batches = np.split(ended[np.argsort(batch, kind="stable")], np.cumsum(sizes)[:-1])
    shares = [
        (ends.max() - np.percentile(ends, 90)) / (ends.max() - start)
        for start, ends in zip(starts, batches, strict=True)
    ]
    return float(np.mean([shares[place] for place in np.argsort(first)]))  # in the order of their first ends


def _ages(record: LoopRecord) -> Counter[int]:
    return Counter(age for step in record.steps for age in step.staleness)
