"""Routers that order trajectories, in the queue and inside engines. A trajectory runs wherever a seat is free."""

from __future__ import annotations

from steelyard.balance.rollouts import Replica, Rollouts, Running
from steelyard.balance.route.ranking import Ranking
from steelyard.balance.route.rollout.protocol import BaseTurnRouter, TurnChoice


class FewestLeftFirst(BaseTurnRouter):
    """Fewest predicted remaining tokens first. With the oracle this is shortest-first, a bound.

    A trajectory stays where its cache is if there is a free seat, else it takes one on the least busy replica. If all
    seats are taken it waits outside of engines, so that the order is decided when a seat is free.
    """

    def __init__(self) -> None:
        self._ranking = Ranking()

    def choose(self, trajectory: Running, rollouts: Rollouts, at: float) -> TurnChoice | None:
        if not len(self._ranking):
            return None
        chosen = trajectory.replica
        if chosen is None or self._ranking.is_full(chosen):
            chosen = self._ranking.first()
        if self._ranking.is_full(chosen):
            return None
        return TurnChoice(chosen, priority=int(trajectory.left.mean))

    def rank(self, trajectory: Running) -> float:
        return trajectory.left.mean

    def changed(self, replica: Replica) -> None:
        self._ranking.put(replica.number, replica.busy, full=replica.free_seats <= 0)

    def gone(self, number: int) -> None:
        self._ranking.remove(number)


class LeastAttained(FewestLeftFirst):
    """Fewest generated tokens first, as Autellix ranks programs. Each trajectory stays on its first replica.

    It needs no estimate: a trajectory that has run long is likely to run longer. Engines queue turns without a seat.
    """

    def choose(self, trajectory: Running, rollouts: Rollouts, at: float) -> TurnChoice | None:
        if not len(self._ranking):
            return None
        chosen = self._ranking.first() if trajectory.replica is None else trajectory.replica
        return TurnChoice(chosen, priority=trajectory.history.generated)

    def rank(self, trajectory: Running) -> float:
        return trajectory.history.generated
