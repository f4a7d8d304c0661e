"""GRPO: advantages within groups, and a clipped objective that is corrected for the age of samples."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from torch import Tensor, minimum

_LEAST_SPREAD = 1e-6  # below which rewards of a group count as equal; chosen


class TokenLosses(NamedTuple):
    """Of generated tokens."""

    losses: Tensor
    truncated: Tensor  # whether its importance weight was
    clipped: Tensor  # whether its ratio was, so that it has no gradient


def advantages(groups: Sequence[str], rewards: Sequence[float]) -> list[float]:
    """How much better each sample is than its group, in standard deviations (of the population) of its rewards.

    A group whose rewards are equal teaches nothing: its advantages are 0.
    """
    members: dict[str, list[float]] = defaultdict(list)
    for group, reward in zip(groups, rewards, strict=True):
        members[group].append(reward)
    scales = {group: _scale(found) for group, found in members.items()}
    return [(reward - scales[group][0]) * scales[group][1] for group, reward in zip(groups, rewards, strict=True)]


def _scale(rewards: list[float]) -> tuple[float, float]:
    """Mean, and one over the spread."""
    mean = sum(rewards) / len(rewards)
    spread = sqrt(sum((each - mean) ** 2 for each in rewards) / len(rewards))
    return mean, 1 / spread if spread > _LEAST_SPREAD else 0.0


def token_losses(
    now: Tensor, proximal: Tensor, behaviour: Tensor, advantage: Tensor, clip: float, most_weight: float
) -> TokenLosses:
    """The decoupled PPO objective, negated, of each token.

    ``behaviour`` are the log-probabilities by the weights that generated a token, ``proximal`` those by the weights
    that the step began with, ``now`` those by the weights that are trained. The ratio of the last two is clipped, as in
    PPO. The ratio of the first two corrects for staleness, and is truncated so that no token counts for too much.
    """
    weight = (proximal - behaviour).exp()
    ratio = (now - proximal).exp()
    limited = ratio.clamp(1 - clip, 1 + clip)
    gain = minimum(ratio * advantage, limited * advantage)
    clipped = (ratio * advantage > limited * advantage).detach()
    return TokenLosses(-weight.clamp(max=most_weight) * gain, weight > most_weight, clipped)


def divergence(now: Tensor, reference: Tensor) -> Tensor:
    """An estimate of the KL divergence from the reference that is never negative and has little variance ("k3")."""
    difference = reference - now
    return difference.exp() - difference - 1
