"""Cost-aware C-MLFQ, the default: a turn goes where it lets the rollout finish soonest."""

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
    """The replica that least raises the expected sum over trajectories of (finish time) to the eighth power.

    A synchronous step is over when its last trajectory is, and it is not known which that will be. In expectation, the
    sum of a high power over all of them follows whichever may be the last. So trajectories that may be long go where
    tokens are fast and neighbours few, and those that are surely short fill replicas that would finish early. A tool
    return moves a trajectory if that pays for bringing its cache over.
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
        """Longest first, since the trajectory that ends a step should never wait. All of a batch go before a later
        batch, which a later step waits for."""
        left = trajectory.left.mean if isfinite(trajectory.left.p90) else trajectory.history.generated
        return trajectory.version * _LONGEST - left

    def park(self, trajectory: Running, rollouts: Rollouts) -> Cache:
        """In the host's memory, which leaves its room to others. If computing it again is faster than fetching it, it
        is kept while there is room for all, and dropped otherwise."""
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
