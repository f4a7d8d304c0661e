"""What a router of turns is asked and told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from steelyard.balance.commands import Cache
from steelyard.balance.rollouts import Replica, Rollouts, Running


@dataclass(slots=True)
class TurnChoice:
    """Where a turn runs. ``cache`` says whether tokens cached elsewhere move along or are computed again."""

    replica: int
    priority: int = 0
    cache: Cache = "keep"


class TurnRouter(Protocol):
    """Chooses replicas for turns of trajectories. It reads the state of the rollout and does not change it."""

    def choose(self, trajectory: Running, rollouts: Rollouts, at: float) -> TurnChoice | None:
        """A replica for a trajectory's next turn. None: it waits, and so does every trajectory behind it."""

    def rank(self, trajectory: Running) -> float:
        """Its place among those that wait: lower goes first, equals in the order in which they came."""

    def park(self, trajectory: Running, rollouts: Rollouts) -> Cache:
        """What becomes of its cache while its tool runs."""

    def changed(self, replica: Replica) -> None:
        """A replica has come up, or its load has changed."""

    def gone(self, number: int) -> None:
        """A replica is no more."""

    def ended(self, trajectory: Running) -> None:
        """A trajectory has ended or was aborted."""


class BaseTurnRouter:
    """What most routers of turns do: first come, first served, and caches stay where they are."""

    def rank(self, trajectory: Running) -> float:
        return 0.0

    def park(self, trajectory: Running, rollouts: Rollouts) -> Cache:
        return "keep"

    def changed(self, replica: Replica) -> None:
        pass

    def gone(self, number: int) -> None:
        pass

    def ended(self, trajectory: Running) -> None:
        pass
