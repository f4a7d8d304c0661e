"""Learns the calculator task with GRPO in one process: ``python -m steelyard.live.tiny.learn FOLDER``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from steelyard.live.tiny.model import make_tiny
from steelyard.live.tiny.rollout import roll_out
from steelyard.live.train.group import TrainingGroup
from steelyard.live.train.settings import TrainerSettings, TrainReport
from steelyard.live.train.weights import load_model, load_weights

# Chosen by trying: 40 steps take the mean reward from 0.35-0.45 to 0.83-0.88 with seeds 0 to 2.
PROMPTS = 16
SAMPLES = 8
RATE = 1e-3


def tiny_settings(model: Path, folder: Path) -> TrainerSettings:
    """Settings with which the tiny model learns fast."""
    return TrainerSettings(model, folder, learning_rate=RATE)


def learn(model: Path, folder: Path, steps: int, seed: int = 0) -> Iterator[TrainReport]:
    """Train for so many steps, each on new prompts, with samples of the present weights."""
    policy = load_model(model)
    group = TrainingGroup.begin(replace(tiny_settings(model, folder), seed=seed))
    try:
        for step in range(steps):
            load_weights(policy, group.publish(step))
            prompts = range(step * PROMPTS, (step + 1) * PROMPTS)
            yield group.train(step, roll_out(policy, seed, prompts, SAMPLES, step), last=True)
    finally:
        group.close()


def main(words: Sequence[str]) -> int:
    """The command line."""
    parser = argparse.ArgumentParser("python -m steelyard.live.tiny.learn", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the model, and what it becomes, are written")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    model = make_tiny(given.folder / "model", given.seed)
    for report in learn(model, given.folder, given.steps, given.seed):
        print(f"step {report.step}: mean reward {report.mean_reward:.3f}, {report.seconds:.2f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
