"""Cost-aware C-MLFQ, the default: a turn goes where it lets the rollout be over soonest."""

from __future__ import annotations

from math import inf, isfinite

from steelyard.balance.commands import Cache
from steelyard.balance.rollouts import Replica, Rollouts, Running
from steelyard.balance.route.outlook import Outlook, Task
from steelyard.balance.route.protocol import Choice, Plain
from steelyard.balance.route.speed import BucketSpeed, Speeds
from steelyard.errors import UserError


class CostAware(Plain):
    """Of all replicas, the one that raises the sum over replicas of (when it is done) to the eighth power the least.

    A synchronous step is over when its last trajectory is, so a high power looks first at the replica that will be done
    last, and at the others by how near to that they come. A replica is done after its longest trajectory's own decoding
    and tools plus the batch's share of all its tokens, so long ones go where tokens are fast and neighbours few, while
    the many short ones fill replicas that would be done early. A tool return moves a trajectory only if that pays for
    bringing its cache over, both if it has left what is expected and if it has its p90: the less is known, the wider
    these lie apart, and the more a move must gain.
    """

    def __init__(self, speeds: Speeds) -> None:
        self._speeds = speeds
        self._outlook = Outlook()
        self._bucket: dict[int, BucketSpeed] = {}  # by replica

    def choose(self, who: Running, rollouts: Rollouts, at: float) -> Choice | None:
        if not self._outlook.has_room(who.context):
            return None
        self._outlook.discount(who.name)
        home, resident = who.replica, who.cache == "keep"
        task = _task(who, _expected(who))
        chosen = self._outlook.best(task, home, resident)
        if home is not None and chosen != home and not self._sure(who, chosen, home, resident):
            chosen = home
        self._outlook.count(who.name, chosen, task)
        moved = self._bucket[chosen].moves(task.cached)
        return Choice(chosen, -int(task.tokens), "keep" if moved else "drop")

    def rank(self, who: Running) -> float:
        """Longest first: whoever sets the step's end should wait for nobody."""
        return -_expected(who)

    def park(self, who: Running, rollouts: Rollouts) -> Cache:
        """Kept while there is room for all; else in the host's memory, or nowhere if computing again is faster."""
        assert who.replica is not None
        here = rollouts.replicas[who.replica]
        if here.tokens <= here.capacity:
            return "keep"
        return "offload" if self._bucket[here.number].moves(who.context) else "drop"

    def changed(self, replica: Replica) -> None:
        if replica.number not in self._bucket:
            speed = self._speeds.get(replica.tp)
            if speed is None:
                known = ", ".join(map(str, sorted(self._speeds)))
                raise UserError(f"speeds: none for tp {replica.tp} of replica {replica.number}; known: {known}")
            self._bucket[replica.number] = speed
            self._outlook.up(replica, speed)
        if not replica.busy:
            room: float = inf  # whatever its size, it has to run somewhere
        elif replica.free_seats > 0:
            room = replica.capacity - replica.active
        else:
            room = -inf
        self._outlook.set_room(replica.number, room)

    def gone(self, number: int) -> None:
        del self._bucket[number]
        self._outlook.gone(number)

    def ended(self, who: Running) -> None:
        self._outlook.discount(who.name)

    def _sure(self, who: Running, chosen: int, home: int, resident: bool) -> bool:
        """Whether moving is better too if it has its p90 left."""
        if not isfinite(who.left.p90):
            return False
        task = _task(who, max(1.0, who.left.p90))
        return self._outlook.rise(chosen, task, False) < self._outlook.rise(home, task, resident)


def _expected(who: Running) -> float:
    """Tokens left; with no estimate as many as it has had, as things of unknown length go."""
    return max(1.0, who.left.mean if isfinite(who.left.p90) else who.history.generated)


def _task(who: Running, tokens: float) -> Task:
    """Tools go on taking as much time by token as they have."""
    history = who.history
    tools = history.tool_seconds / history.generated * tokens if history.generated else 0.0
    if who.cache == "drop":
        return Task(tokens, tools, 0, who.context)
    new = history.turns[-1].returned if history.turns else 0
    return Task(tokens, tools, who.context - new, new)
