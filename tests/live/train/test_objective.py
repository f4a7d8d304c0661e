"""GRPO's advantages and losses, against numbers worked out by hand."""

from __future__ import annotations

from math import exp, log

import pytest
import torch

from steelyard.live.train.objective import advantages, divergence, token_losses


def test_advantages_are_deviations_within_groups() -> None:
    found = advantages(["a", "b", "a", "b"], [1.0, 5.0, 3.0, 5.0])
    assert found == pytest.approx([-1.0, 0.0, 1.0, 0.0])  # mean 2 and deviation 1; equal rewards teach nothing


def test_advantages_of_a_group_sum_to_nothing() -> None:
    found = advantages(["a"] * 5, [0.0, 0.1, 0.2, 1.0, 1.0])
    assert sum(found) == pytest.approx(0.0)
    assert sum(each**2 for each in found) / 5 == pytest.approx(1.0)


def _losses(now: float, proximal: float, behaviour: float, advantage: float) -> list[float]:
    """Of a token with these probabilities: loss, its gradient, and whether it was truncated or clipped."""
    probability = torch.tensor([log(now)], requires_grad=True)
    others = (torch.tensor([log(proximal)]), torch.tensor([log(behaviour)]), torch.tensor([advantage]))
    found = token_losses(probability, *others, clip=0.2, most_weight=2.0)
    torch.autograd.backward([found.losses.sum()])
    assert probability.grad is not None
    return [float(each) for each in (found.losses.detach(), probability.grad, found.truncated, found.clipped)]


@pytest.mark.parametrize(
    ("now", "proximal", "behaviour", "advantage", "loss", "slope"),
    [
        (0.5, 0.5, 0.5, 1.0, -1.0, -1.0),  # on policy: the gradient is that of the log-probability
        (0.55, 0.5, 0.5, 1.0, -1.1, -1.1),  # within the clip
        (0.55, 0.5, 0.4, 1.0, -1.1 * 1.25, -1.1 * 1.25),  # older by a weight of 0.5 / 0.4
        (0.2, 0.5, 0.5, 1.0, -0.4, -0.4),  # a good token that became unlikely is not clipped
        (0.9, 0.5, 0.5, -1.0, 1.8, 1.8),  # nor a bad one that became likely
    ],
)
def test_tokens_that_count(
    now: float, proximal: float, behaviour: float, advantage: float, loss: float, slope: float
) -> None:
    assert _losses(now, proximal, behaviour, advantage) == pytest.approx([loss, slope, 0, 0])


@pytest.mark.parametrize(("now", "advantage", "loss"), [(0.9, 2.0, -2.4), (0.1, -2.0, 1.6)])
def test_clipped_tokens_have_no_gradient(now: float, advantage: float, loss: float) -> None:
    assert _losses(now, 0.5, 0.5, advantage) == pytest.approx([loss, 0, 0, 1])


def test_importance_weights_are_truncated() -> None:
    assert _losses(0.5, 0.5, 0.01, 1.0) == pytest.approx([-2, -2, 1, 0])


def test_divergence_is_never_negative_and_zero_for_equals() -> None:
    now = torch.tensor([-1.0, -2.0, -0.5])
    assert divergence(now, now).tolist() == [0.0, 0.0, 0.0]
    found = divergence(now, torch.tensor([-2.0, -1.0, -0.6]))
    assert found.tolist() == pytest.approx([exp(-1) + 1 - 1, exp(1) - 1 - 1, exp(-0.1) + 0.1 - 1], rel=1e-4)
    assert bool((found > 0).all())
