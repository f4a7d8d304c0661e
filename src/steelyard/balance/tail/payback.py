"""Whether it pays to go on with the last trajectories on other replicas, by what they are likely to have left.

A rollout is over when its last trajectory is. With x more tokens decoded by each, somebody is still running with some
probability, and a step takes as long as so many on so many replicas take. The sum over x is the time that remains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from steelyard.balance.route.speed import BucketSpeed

_BINS = 64  # of the tokens that the longest may have left
_LEAST = 0.05  # share of the remaining time that a change has to save; that of Libra's planner


@dataclass(frozen=True, slots=True)
class Part:
    """Replicas of one degree, and the share of the trajectories on them."""

    speed: BucketSpeed
    replicas: int
    share: float

    def step(self, running: float, context: float) -> float:
        """Seconds of a step, with so many trajectories on all parts, of so many tokens of context each."""
        here = ceil(max(1.0, self.share * running) / self.replicas)
        return self.speed.step(here, int(here * context))


def pays(left: Sequence[Sequence[float]], context: float, now: Sequence[Part], then: Part, cost: float) -> bool:
    """Whether to change now from ``now`` to ``then``, which takes ``cost`` seconds: whether that saves enough, and no
    less than changing later, when some have ended, would.

    ``left`` has the tokens that each trajectory may have left, equally likely and rising; ``context`` is the mean one.
    """
    width = max(lengths[-1] for lengths in left) / _BINS
    stay = gained = 0.0
    for number, (running, any_left) in enumerate(_survival(left, width)):
        if gained < cost * (1.0 - any_left):
            return False
        there = max(1.0, running / any_left)  # if anybody is
        tokens = context + (number + 0.5) * width
        seconds = any_left * width
        before = seconds * sum(part.share * part.step(there, tokens) for part in now)
        stay += before
        gained += before - seconds * then.step(there, tokens)
    return gained > cost + _LEAST * stay


def _survival(left: Sequence[Sequence[float]], width: float) -> list[tuple[float, float]]:
    """In the middle of each bin: how many trajectories are expected to run, and the chance that any does."""
    ends = sorted((length, index) for index, lengths in enumerate(left) for length in lengths)
    later = [0] * len(left)  # by trajectory: ends that are later
    running, none_left = 0.0, 1.0
    found: list[tuple[float, float]] = []
    for number in range(_BINS - 1, -1, -1):
        while ends and ends[-1][0] > (number + 0.5) * width:
            index = ends.pop()[1]
            before, count = later[index], len(left[index])
            later[index] = before + 1
            running += 1.0 / count
            none_left *= (count - before - 1) / (count - before)
        found.append((running, 1.0 - none_left))
    return found[::-1]
