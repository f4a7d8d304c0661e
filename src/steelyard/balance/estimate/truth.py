"""Estimators that are given the truth: bounds for policies that use predictions."""

from __future__ import annotations

from collections.abc import Iterable

from steelyard.balance.estimate.history import History
from steelyard.balance.estimate.protocol import Left
from steelyard.balance.portable import SIGMA, Z90, bell, exponential
from steelyard.records import Trajectory


class Oracle:
    """Knows what each given trajectory has left, also before its first turn."""

    def __init__(self, trajectories: Iterable[Trajectory] = ()) -> None:
        self._left: dict[str, list[int]] = {}
        self._unasked: dict[str, Trajectory] = {}  # not indexed yet: most runs use other estimators
        self.foresee(trajectories)

    def foresee(self, trajectories: Iterable[Trajectory]) -> None:
        """Add trajectories."""
        self._unasked.update((each.id, each) for each in trajectories)

    def forget(self, trajectory: str) -> None:
        """It is over."""
        self._left.pop(trajectory, None)
        self._unasked.pop(trajectory, None)

    def observe(self, history: History) -> Left:
        name = history.trajectory
        if name in self._unasked:
            each = self._unasked.pop(name)
            self._left[name] = [each.generated, *each.left()]
        left = float(self._left[name][len(history.turns)])
        return Left(left, left)

    def learn(self, done: Trajectory) -> None:
        """Nothing to learn."""


class Noisy:
    """The oracle times a factor for each trajectory: log-normal, with ``error`` as its sigma.

    The factor depends only on the trajectory's name, not on the order of calls. Nine in ten trajectories have less left
    than its p90.
    """

    def __init__(self, oracle: Oracle, error: float, seed: int = 0) -> None:
        self._oracle = oracle
        self._error = error
        self._seed = seed

    def observe(self, history: History) -> Left:
        drawn = float(bell(f"{self._seed}:{history.trajectory}", 1)[0]) / SIGMA
        mean = self._oracle.observe(history).mean * exponential(self._error * drawn)
        return Left(float(round(mean)), float(round(mean * exponential(self._error * Z90))))

    def learn(self, done: Trajectory) -> None:
        """Nothing to learn."""
