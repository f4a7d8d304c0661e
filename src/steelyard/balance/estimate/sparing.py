"""An estimator that is taught by some of the trajectories only, where there are more than it needs."""

from __future__ import annotations

from steelyard.balance.estimate.protocol import Estimator
from steelyard.records import Trajectory


class Sparing:
    """Hands on the first of every so many that end. Those that end first are short, so it counts from end to end."""

    def __init__(self, estimator: Estimator, every: int) -> None:
        self._estimator = estimator
        self.observe = estimator.observe
        self._every = every
        self._ended = 0

    def learn(self, done: Trajectory) -> None:
        if self._ended % self._every == 0:
            self._estimator.learn(done)
        self._ended += 1
