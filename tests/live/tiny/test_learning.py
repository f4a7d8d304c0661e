"""GRPO learns the calculator task: the whole loop of rollout, training and new weights, small."""

from __future__ import annotations

from pathlib import Path

import torch

from steelyard.live.tiny.learn import learn
from steelyard.live.tiny.model import make_tiny
from steelyard.live.tiny.rollout import roll_out
from steelyard.live.train.weights import load_model

STEPS = 14


def test_the_mean_reward_rises(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = make_tiny(tmp_path / "model")
        rewards = [report.mean_reward for report in learn(model, tmp_path / "run", STEPS)]
    finally:
        torch.set_num_threads(threads)
    assert 0.2 < rewards[0] < 0.5  # after the warm-up it is sometimes right
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.2


def test_rollouts_follow_from_weights_and_seed(tmp_path: Path) -> None:
    model = load_model(make_tiny(tmp_path / "model", warm_up=20))
    samples = roll_out(model, 1, range(3), 4, version=6)
    assert samples == roll_out(model, 1, range(3), 4, version=6)
    assert samples != roll_out(model, 1, range(3), 4, version=7)
    assert len({each.trajectory for each in samples}) == 12 and len({each.group for each in samples}) == 3
    for each in samples:
        assert len(each.tokens) == len(each.generated) and sum(each.generated) == len(each.logprobs)
        assert each.versions == [6] * len(each.logprobs)
