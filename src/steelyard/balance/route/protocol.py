"""What a router is asked and told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from steelyard.balance.commands import Cache
from steelyard.balance.rollouts import Replica, Rollouts, Running


@dataclass(slots=True)
class Choice:
    """Where a turn runs. ``cache`` says whether what is cached elsewhere moves along or is computed again."""

    replica: int
    priority: int = 0
    cache: Cache = "keep"


class Router(Protocol):
    """Chooses replicas for turns. It only looks at the rollout; what it remembers beside, it is told here."""

    def choose(self, who: Running, rollouts: Rollouts, at: float) -> Choice | None:
        """A replica for a trajectory's next turn, which it then gets; none: it waits, and everybody behind it."""

    def rank(self, who: Running) -> float:
        """Its place in line: lower goes first, equals in order of coming."""

    def park(self, who: Running, rollouts: Rollouts) -> Cache:
        """What becomes of its cache while its tool runs."""

    def changed(self, replica: Replica) -> None:
        """A replica has come up, or its load has changed."""

    def gone(self, number: int) -> None:
        """A replica is no more."""

    def ended(self, who: Running) -> None:
        """A trajectory has ended or was given up."""


class Plain:
    """What most routers do: first come, first served, caches kept, nothing remembered."""

    def rank(self, who: Running) -> float:
        return 0.0

    def park(self, who: Running, rollouts: Rollouts) -> Cache:
        return "keep"

    def changed(self, replica: Replica) -> None:
        pass

    def gone(self, number: int) -> None:
        pass

    def ended(self, who: Running) -> None:
        pass
