"""Routers that put trajectories in order, in line and in engines; where they run follows from who has a free seat."""

from __future__ import annotations

from steelyard.balance.rollouts import Replica, Rollouts, Running
from steelyard.balance.route.protocol import Choice, Plain
from steelyard.balance.route.ranking import Ranking


class FewestLeftFirst(Plain):
    """The fewest tokens left go first, by whatever the estimator says; with the oracle it is shortest-first as a bound.

    Each stays where its cache is while there is a seat, else takes one on the least busy replica; all seats taken, it
    waits in line, since who goes first should be decided when there is something to have.
    """

    def __init__(self) -> None:
        self._ranking = Ranking()

    def choose(self, who: Running, rollouts: Rollouts, at: float) -> Choice | None:
        chosen = who.replica
        if chosen is None or rollouts.replicas[chosen].free_seats <= 0:
            chosen = self._ranking.first()
        if chosen is None or rollouts.replicas[chosen].free_seats <= 0:
            return None
        return Choice(chosen, priority=int(who.left.mean))

    def rank(self, who: Running) -> float:
        return who.left.mean

    def changed(self, replica: Replica) -> None:
        self._ranking.put(replica.number, replica.free_seats <= 0, replica.busy)

    def gone(self, number: int) -> None:
        self._ranking.remove(number)


class LeastAttained(FewestLeftFirst):
    """The fewest tokens served so far go first, as Autellix ranks programs, and each stays where it began.

    It needs no estimate: what has run for long is likely to run on. Engines queue and rank; nobody leaves a replica.
    """

    def choose(self, who: Running, rollouts: Rollouts, at: float) -> Choice | None:
        chosen = self._ranking.first() if who.replica is None else who.replica
        return None if chosen is None else Choice(chosen, priority=who.history.generated)

    def rank(self, who: Running) -> float:
        return who.history.generated
