"""C-MLFQ as published: queues are tensor-parallel degrees, and tool returns move trajectories between them."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from steelyard.balance.commands import Cache
from steelyard.balance.rollouts import Replica, Rollouts, Running
from steelyard.balance.route.ranking import Ranking
from steelyard.balance.route.rollout.protocol import BaseTurnRouter, TurnChoice

SMALL: Mapping[int, int] = {1: 4_000, 2: 12_000, 4: 30_000}
LARGE: Mapping[int, int] = {2: 5_000, 4: 15_000, 8: 40_000}
_RECOMPUTED = 4_096  # tokens: shorter contexts are recomputed instead of moved
QUEUE_CAP = 64  # turns on a replica at most, running and queued


class CMlfq(BaseTurnRouter):
    """A new trajectory starts in the bucket for the shortest. A tool return moves it to another bucket if mean and p90
    of its remaining tokens agree on that bucket.

    In a new bucket it goes to the replica with the fewest turns; in the same bucket it stays on its replica. Replicas
    with ``queue_cap`` turns are skipped. If a whole bucket is full, buckets for longer trajectories are tried, then
    those for shorter.
    """

    def __init__(self, caps: Mapping[int, int] | None = None, queue_cap: int = QUEUE_CAP) -> None:
        self._given, self._queue_cap = caps, queue_cap
        self._buckets: dict[int, Ranking] = {}  # by degree, rising
        self._degrees: dict[int, int] = {}  # by replica

    def choose(self, trajectory: Running, rollouts: Rollouts, at: float) -> TurnChoice | None:
        if not self._buckets:
            return None
        bucket = self._bucket(trajectory)
        home = trajectory.replica
        if home is not None and self._degrees[home] == bucket and not self._buckets[bucket].is_full(home):
            return TurnChoice(home)
        degrees = list(self._buckets)
        at_least = degrees.index(bucket)
        for degree in (*degrees[at_least:], *reversed(degrees[:at_least])):
            ranking = self._buckets[degree]
            least = ranking.first()
            if not ranking.is_full(least):
                return TurnChoice(least, cache="drop" if trajectory.context < _RECOMPUTED else "keep")
        return None

    def park(self, trajectory: Running, rollouts: Rollouts) -> Cache:
        return "offload"

    def changed(self, replica: Replica) -> None:
        if replica.tp not in self._buckets:
            self._buckets = dict(sorted([*self._buckets.items(), (replica.tp, Ranking())]))
        self._degrees[replica.number] = replica.tp
        self._buckets[replica.tp].put(replica.number, replica.busy, replica.busy >= self._queue_cap)

    def gone(self, number: int) -> None:
        degree = self._degrees.pop(number)
        self._buckets[degree].remove(number)
        if not len(self._buckets[degree]):
            del self._buckets[degree]

    def _bucket(self, trajectory: Running) -> int:
        if not trajectory.history.turns:
            return next(iter(self._buckets))
        of_mean, of_p90 = self._fits(trajectory.left.mean), self._fits(trajectory.left.p90)
        if of_mean == of_p90:
            return of_mean
        return next(iter(self._buckets)) if trajectory.replica is None else self._degrees[trajectory.replica]

    def _fits(self, tokens: float) -> int:
        """The first bucket whose cap is not exceeded, else the last."""
        caps = self._given or (LARGE if 8 in self._buckets and 1 not in self._buckets else SMALL)
        last = 0
        for degree in self._buckets:
            if tokens <= caps.get(degree, inf):
                return degree
            last = degree
        return last
