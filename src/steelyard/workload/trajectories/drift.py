"""How lengths and reward change as a policy trains.

The learning model is an assumption, not a finding: skill goes from 0 to 1 as ``1 - exp(-samples)``, and the weight of a
stale sample halves with every ``stale_half`` versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log

import numpy as np
from numpy.typing import ArrayLike

from steelyard.scenario.rollouts import Factors, LearningDrift, LearningSpec, ScheduleDrift


@dataclass(frozen=True, slots=True)
class Learning:
    """From samples trained on, and how stale they were, to skill and reward."""

    spec: LearningSpec

    def effective(self, staleness: ArrayLike) -> float:
        """Total weight of samples with these stalenesses (in weight versions); a fresh one counts 1."""
        versions = np.asarray(staleness, dtype=np.float64)
        half = self.spec.stale_half
        return float(versions.size if half is None else np.exp2(-versions / half).sum())

    def skill(self, trained: float) -> float:
        """Skill, from 0 to 1, after ``trained`` effective samples."""
        return 1.0 - exp(-trained / self.spec.samples)

    def reward(self, trained: float) -> float:
        """Mean reward after ``trained`` effective samples."""
        return self.spec.start + (self.spec.best - self.spec.start) * self.skill(trained)

    def samples_for(self, reward: float) -> float:
        """Effective samples until a mean reward is reached; infinite from the best reward on."""
        if reward <= self.spec.start:
            return 0.0
        if reward >= self.spec.best:
            return inf
        return -self.spec.samples * log((self.spec.best - reward) / (self.spec.best - self.spec.start))


def scheduled(drift: ScheduleDrift, step: int) -> Factors:
    """Linear between points, constant outside."""
    steps = [point.step for point in drift.points]
    return Factors(
        tokens=float(np.interp(step, steps, [point.tokens for point in drift.points])),
        turns=float(np.interp(step, steps, [point.turns for point in drift.points])),
        success=float(np.interp(step, steps, [point.success for point in drift.points])),
    )


def learnt(drift: LearningDrift, skill: float) -> Factors:
    """Each factor, linear in skill."""
    return Factors(
        tokens=1 + (drift.tokens - 1) * skill,
        turns=1 + (drift.turns - 1) * skill,
        success=1 + (drift.success - 1) * skill,
    )
