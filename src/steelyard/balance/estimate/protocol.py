"""The interface of estimators."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from steelyard.balance.estimate.history import History
from steelyard.records import Trajectory


@dataclass(slots=True, unsafe_hash=True)
class Left:
    """Tokens still to be generated: their mean and their 90th percentile.

    Never changed; it is not frozen only because frozen classes take several times as long to make.
    """

    mean: float
    p90: float


UNKNOWN = Left(0.0, inf)
"""Nothing learnt yet. Mean and p90 are as far apart as can be, so a router that needs both to agree does nothing."""


class Estimator(Protocol):
    """Predicts at tool returns and learns from trajectories that have ended, in any order. Reads no clock."""

    def observe(self, history: History) -> Left:
        """Predict what is left after the tool return that ``history`` ends with. Changes nothing."""

    def learn(self, done: Trajectory) -> None:
        """Learn from a trajectory that has ended."""
