"""The interface of turn routers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from steelyard.balance.commands import Cache
from steelyard.balance.rollouts import Replica, Rollouts, Running


@dataclass(slots=True)
class TurnChoice:
    """Where a turn runs. ``cache`` says whether tokens cached elsewhere are moved or recomputed."""

    replica: int
    priority: int = 0
    cache: Cache = "keep"


class TurnRouter(Protocol):
    """Chooses replicas for turns of trajectories. It reads the state of the rollout and does not change it."""

    def choose(self, trajectory: Running, rollouts: Rollouts, at: float) -> TurnChoice | None:
        """The replica for a trajectory's next turn. None: it waits, and so do all trajectories behind it."""

    def rank(self, trajectory: Running) -> float:
        """Its place in the queue: lower goes first, equals in order of arrival."""

    def park(self, trajectory: Running, rollouts: Rollouts) -> Cache:
        """What to do with its cache while its tool runs."""

    def changed(self, replica: Replica) -> None:
        """A replica has come up, or its load has changed."""

    def gone(self, number: int) -> None:
        """A replica was removed."""

    def ended(self, trajectory: Running) -> None:
        """A trajectory has ended or was aborted."""


class BaseTurnRouter:
    """Defaults of a turn router: first come, first served; caches stay where they are."""

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
