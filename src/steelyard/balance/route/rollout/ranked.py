"""Routers that order trajectories, both those that wait and those inside engines. They run wherever a seat is free."""

from __future__ import annotations

from steelyard.balance.rollouts import Replica, Rollouts, Running
from steelyard.balance.route.ranking import Ranking
from steelyard.balance.route.rollout.protocol import BaseTurnRouter, TurnChoice


class FewestLeftFirst(BaseTurnRouter):
    """The fewest tokens left go first, by what the estimator says. With the oracle this is shortest-first, a bound.

    A trajectory stays where its cache is if there is a free seat, else it takes one on the least busy replica. If all
    seats are taken it waits outside of engines, so that the order is decided when a seat becomes free.
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
    """The fewest tokens generated so far go first, as Autellix ranks programs. Each stays on its first replica.

    It needs no estimate: what has run for long is likely to go on. Engines queue what has no seat.
    """

    def choose(self, trajectory: Running, rollouts: Rollouts, at: float) -> TurnChoice | None:
        if not len(self._ranking):
            return None
        chosen = self._ranking.first() if trajectory.replica is None else trajectory.replica
        return TurnChoice(chosen, priority=trajectory.history.generated)

    def rank(self, trajectory: Running) -> float:
        return trajectory.history.generated
