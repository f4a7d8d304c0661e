"""Cost-aware C-MLFQ, the default: a turn goes to the replica that lets the rollout finish soonest."""

from __future__ import annotations

from math import isfinite

from steelyard.balance.commands import Cache
from steelyard.balance.rollouts import Replica, Rollouts, Running
from steelyard.balance.route.rollout.demand import DemandModel
from steelyard.balance.route.rollout.finish import FinishPredictor
from steelyard.balance.route.rollout.protocol import BaseTurnRouter, TurnChoice
from steelyard.balance.route.speed import BucketSpeed, Speeds
from steelyard.errors import UserError

_LONGEST = 1e9  # tokens: no trajectory has more left


class CostAware(BaseTurnRouter):
    """The replica that least raises the expected sum over trajectories of (finish time) ** 8.

    A synchronous step ends with its last trajectory, which is not known in advance. The sum of a high power is
    dominated by those that may be last. So trajectories that may be long go to fast replicas with little load, and
    short ones fill replicas that would finish early. A tool return moves a trajectory if the gain exceeds the cost of
    moving its cache.
    """

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self._demands = DemandModel()
        self._finish = FinishPredictor(self._demands)
        self._bucket: dict[int, BucketSpeed] = {}  # by replica

    def choose(self, trajectory: Running, rollouts: Rollouts, at: float) -> TurnChoice | None:
        if not self._finish.has_room(trajectory.context):
            return None
        self._finish.discount(trajectory.name)
        demand = self._demands.demand(trajectory, len(rollouts.running))
        chosen = self._finish.best(demand, trajectory.replica, trajectory.cache == "keep", at)
        self._finish.count(trajectory.name, chosen, demand)
        moved = self._bucket[chosen].moves(demand.cached)
        return TurnChoice(chosen, -int(demand.expected), "keep" if moved else "drop")

    def rank(self, trajectory: Running) -> float:
        """Longest first: the trajectory that ends a step should never wait. Earlier batches go before later ones."""
        left = trajectory.left.mean if isfinite(trajectory.left.p90) else trajectory.history.generated
        return trajectory.version * _LONGEST - left

    def park(self, trajectory: Running, rollouts: Rollouts) -> Cache:
        """Offload to host memory, to make room for others. If recomputing is faster than fetching, keep the cache while
        there is room for all, else drop it."""
        assert trajectory.replica is not None
        here = rollouts.replicas[trajectory.replica]
        if self._bucket[here.number].moves(trajectory.context):
            return "offload"
        return "keep" if here.tokens <= here.capacity else "drop"

    def changed(self, replica: Replica) -> None:
        if replica.number not in self._bucket:
            speed = self._speeds.get(replica.tp)
            if speed is None:
                known = ", ".join(map(str, sorted(self._speeds)))
                raise UserError(f"speeds: none for tp {replica.tp} of replica {replica.number}; known: {known}")
            self._bucket[replica.number] = speed
            self._finish.up(replica, speed)
        self._finish.set_load(replica)

    def gone(self, number: int) -> None:
        del self._bucket[number]
        self._finish.gone(number)

    def ended(self, trajectory: Running) -> None:
        self._finish.discount(trajectory.name)
        if trajectory.history.turns:
            self._demands.learn(trajectory.history)
