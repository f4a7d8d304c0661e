"""An estimator that learns from some of the trajectories only, where there are more than it needs."""

from __future__ import annotations

from steelyard.balance.estimate.history import History
from steelyard.balance.estimate.protocol import Estimator, Left
from steelyard.records import Trajectory


class Sparing:
    """Learns from one in so many trajectories. Short ones end first, so it counts in the order in which they end."""

    def __init__(self, estimator: Estimator, every: int) -> None:
        self._estimator = estimator
        self._every = every
        self._ended = 0

    def observe(self, history: History) -> Left:
        return self._estimator.observe(history)

    def learn(self, done: Trajectory) -> None:
        if self._ended % self._every == 0:
            self._estimator.learn(done)
        self._ended += 1
