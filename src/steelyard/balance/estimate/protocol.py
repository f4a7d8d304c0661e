"""What every estimator answers and how it learns."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from steelyard.balance.estimate.history import History
from steelyard.records import Trajectory


@dataclass(slots=True, unsafe_hash=True)
class Left:
    """Tokens still to be generated: what to expect, and what nine in ten stay below.

    Nobody changes one; it is not frozen, as events are not (`events.py`).
    """

    mean: float
    p90: float


UNKNOWN = Left(0.0, inf)
"""Nothing learnt yet. Mean and p90 lie as far apart as can be, so whoever moves only where they agree does not move."""


class Estimator(Protocol):
    """Asked at tool returns, taught by whole trajectories; both may come in any order, and neither looks at a clock."""

    def observe(self, history: History) -> Left:
        """What is left after the tool return that ``history`` ends with. Changes nothing."""

    def learn(self, done: Trajectory) -> None:
        """Take in a trajectory that has ended."""
