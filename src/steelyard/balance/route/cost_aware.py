"""Cost-aware C-MLFQ, the default: a turn goes where it lets the rollout be over soonest."""

from __future__ import annotations

from math import isfinite

from steelyard.balance.commands import Cache
from steelyard.balance.rollouts import Replica, Rollouts, Running
from steelyard.balance.route.outlook import Outlook
from steelyard.balance.route.prospect import Habits
from steelyard.balance.route.protocol import Choice, Plain
from steelyard.balance.route.speed import BucketSpeed, Speeds
from steelyard.errors import UserError

_LONGEST = 1e9  # tokens: no trajectory has more left


class CostAware(Plain):
    """Of all replicas, the one that raises the expected sum of (when a trajectory is done) to the eighth power least.

    A synchronous step is over when its last trajectory is, and nobody knows which that will be; the sum of a high
    power over all of them, in expectation, follows whoever may be the last. So those that may be long go where tokens
    are fast and neighbours few, and those that are surely short fill replicas that would be done early. A tool return
    moves a trajectory if that pays for bringing its cache over.
    """

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self._habits = Habits()
        self._outlook = Outlook(self._habits)
        self._bucket: dict[int, BucketSpeed] = {}  # by replica

    def choose(self, who: Running, rollouts: Rollouts, at: float) -> Choice | None:
        if not self._outlook.has_room(who.context):
            return None
        self._outlook.discount(who.name)
        prospect = self._habits.prospect(who, len(rollouts.running))
        chosen = self._outlook.best(prospect, who.replica, who.cache == "keep", at)
        self._outlook.count(who.name, chosen, prospect)
        moved = self._bucket[chosen].moves(prospect.cached)
        return Choice(chosen, -int(prospect.expected), "keep" if moved else "drop")

    def rank(self, who: Running) -> float:
        """Longest first, since whoever sets a step's end should wait for nobody; and before all of a later batch, which
        a later step waits for."""
        left = who.left.mean if isfinite(who.left.p90) else who.history.generated
        return who.version * _LONGEST - left

    def park(self, who: Running, rollouts: Rollouts) -> Cache:
        """In the host's memory, so that others may have its room; where computing it again is faster than fetching it,
        it is kept while there is room for all."""
        assert who.replica is not None
        here = rollouts.replicas[who.replica]
        if self._bucket[here.number].moves(who.context):
            return "offload"
        return "keep" if here.tokens <= here.capacity else "drop"

    def changed(self, replica: Replica) -> None:
        if replica.number not in self._bucket:
            speed = self._speeds.get(replica.tp)
            if speed is None:
                known = ", ".join(map(str, sorted(self._speeds)))
                raise UserError(f"speeds: none for tp {replica.tp} of replica {replica.number}; known: {known}")
            self._bucket[replica.number] = speed
            self._outlook.up(replica, speed)
        self._outlook.set_load(replica)

    def gone(self, number: int) -> None:
        del self._bucket[number]
        self._outlook.gone(number)

    def ended(self, who: Running) -> None:
        self._outlook.discount(who.name)
        if who.history.turns:
            self._habits.learn(who.history)
