"""The core's picture of a rollout: replicas, the trajectories on them and those that wait. Events alone change it.

Whatever happens to a trajectory, what it takes up is taken off the replicas it touches, it changes, and what it takes
up then is put back on. So loads are always sums over trajectories, at a cost that does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from steelyard.balance.commands import Cache
from steelyard.balance.estimate import UNKNOWN, History, Left
from steelyard.balance.events import (
    Aborted,
    Begun,
    Called,
    Ended,
    Moved,
    Paused,
    ReplicaDown,
    ReplicaUp,
    Resumed,
    Returned,
    RolloutEvent,
    Sent,
)
from steelyard.balance.line import Line

Doing = Literal["waiting", "moving", "generating", "tool"]


@dataclass(slots=True)
class Running:
    """A trajectory under way. Its ``replica`` is where its cache lies, also while a tool runs."""

    history: History
    version: int
    since: float  # when it began, or its last tool returned
    left: Left = UNKNOWN
    doing: Doing = "waiting"
    replica: int | None = None
    cache: Cache = "drop"  # what became of its cached tokens: on the GPU, in the host's memory, or nowhere
    target: int | None = None  # while it moves: where it has a seat reserved
    fresh: int = 0  # tokens of a turn whose tool is running
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.history.trajectory

    @property
    def in_tool(self) -> bool:
        return self.doing == "tool"

    @property
    def context(self) -> int:
        """Tokens that its next turn begins with."""
        return self.history.context + self.fresh


@dataclass(slots=True)
class Replica:
    """An engine, and what was placed on it."""

    number: int
    tp: int
    seats: int
    capacity: int  # tokens of its cache
    placed: dict[str, Running] = field(default_factory=dict)
    coming: dict[str, Running] = field(default_factory=dict)  # seats reserved for those whose caches are on the way
    busy: int = 0  # seats taken by those that are generating (or queueing to) and by those that are coming
    active: int = 0  # context of these
    tokens: int = 0  # context of all whose cache is or will be on its GPUs

    @property
    def free_seats(self) -> int:
        """Negative where requests queue."""
        return self.seats - self.busy


class Rollouts:
    """Who is where. Trajectories that no replica has been found for wait in line."""

    def __init__(
        self, waiting: Line[Running] | None = None, watch: Callable[[Replica], object] = lambda _: None
    ) -> None:
        self.replicas: dict[int, Replica] = {}
        self.running: dict[str, Running] = {}
        self.waiting: Line[Running] = Line() if waiting is None else waiting
        self._watch = watch  # told of each replica whose load has changed

    def apply(self, event: RolloutEvent) -> Running | None:
        """Take an event in; the trajectory that it is about, if it is about one."""
        return _TAKEN[type(event)](self, event)

    def place(self, who: Running, number: int, cache: Cache = "keep") -> int | None:
        """Its next turn runs there; returns where it was cached before.

        What moves stays on its source until it has arrived, and is reserved for on the target; should that one be
        lost on the way, nothing else is. Whatever does not move is there at once.
        """
        source, before = who.replica, who.target
        self.waiting.discard(who.name)
        self._count(who, -1)
        if before is not None:  # sent on before it was there
            del self.replicas[before].coming[who.name]
            who.target = None
            self._watch(self.replicas[before])
        if source is not None and source != number and cache == "keep":
            who.target = number
            who.doing = "moving"
            self.replicas[number].coming[who.name] = who
        else:
            self._house(who, number)
            who.doing = "generating"
        self._count(who, +1)
        self._changed(source if source != number else None, number)
        return source

    def park(self, who: Running, cache: Cache) -> None:
        """What becomes of its cache while its tool runs."""
        if who.cache == cache and cache != "drop":
            return
        assert who.replica is not None and who.in_tool, "nothing else of it counts meanwhile"
        here = self.replicas[who.replica]
        if who.cache == "keep":
            here.tokens -= who.context
        who.cache = cache
        if cache == "keep":
            here.tokens += who.context
        elif cache == "drop":
            self._unhouse(who)
        self._watch(here)

    def _begin(self, event: Begun) -> Running:
        who = Running(History(event.trajectory, event.prompt, event.prompt_tokens), event.version, event.at)
        for turn in event.turns:
            who.history.add(turn)
        who.fresh = event.fresh
        self.running[who.name] = who
        return self._wait(who)

    def _end(self, event: Ended) -> Running:
        who = self._remove(event)
        who.fresh = 0
        who.history.add(event.turn)
        return who

    def _called(self, event: Called) -> Running:
        return self._stop(self.running[event.trajectory], event.generated)

    def _paused(self, event: Paused) -> Running:
        who = self.running[event.trajectory]
        return self._stop(who, event.generated - who.history.generated)

    def _returned(self, event: Returned) -> Running:
        who = self.running[event.trajectory]
        self._count(who, -1)
        who.fresh = 0
        who.history.add(event.turn)
        who.since = event.at
        self._wait(who)
        self._count(who, +1)
        self._changed(who.replica)
        return who

    def _resumed(self, event: Resumed) -> Running:
        return self._wait(self.running[event.trajectory])

    def _moved(self, event: Moved) -> Running:
        return self._arrive(self.running[event.trajectory])

    def _sent(self, event: Sent) -> Running:
        who, number = self.running[event.trajectory], event.replica
        if not who.in_tool:
            self.place(who, number)
            return who
        source = who.replica
        self._count(who, -1)
        self._house(who, number)
        self._count(who, +1)
        self._changed(source, number)
        return who

    def _wait(self, who: Running) -> Running:
        who.doing = "waiting"
        self.waiting.add(who.name, who)
        return who

    def _arrive(self, who: Running) -> Running:
        """Nothing to do for one that was not moving any more, since its target was lost meanwhile."""
        source, target = who.replica, who.target
        if target is None:
            return who
        self._count(who, -1)
        del self.replicas[target].coming[who.name]
        who.target = None
        self._house(who, target)
        who.doing = "generating"
        self._count(who, +1)
        self._changed(source, target)
        return who

    def _stop(self, who: Running, generated: int) -> Running:
        """Its turn is over. A turn that was thought lost with its replica counts too, if a driver has got it."""
        self._arrive(who)
        if who.doing == "waiting":
            self.waiting.discard(who.name)
        self._count(who, -1)
        who.doing = "tool"
        who.fresh = generated
        self._count(who, +1)
        self._changed(who.replica)
        return who

    def _remove(self, event: Ended | Aborted) -> Running:
        who = self.running.pop(event.trajectory)
        source, target = who.replica, who.target
        self.waiting.discard(who.name)
        self._count(who, -1)
        if target is not None:
            del self.replicas[target].coming[who.name]
            who.target = None
        self._unhouse(who)
        self._changed(source, target)
        return who

    def _up(self, event: ReplicaUp) -> None:
        if event.replica in self.replicas:
            self._lose(event.replica)
        added = self.replicas[event.replica] = Replica(event.replica, event.tp, event.seats, event.tokens)
        self._watch(added)

    def _lose(self, number: int) -> None:
        """Those who generated there wait, and so do those on their way there, whose caches are where they were."""
        lost = self.replicas[number]
        for who in [*lost.placed.values(), *lost.coming.values()]:
            other = who.replica if who.target == number else who.target
            self._count(who, -1)
            if who.target == number:
                who.target = None
            else:
                self._unhouse(who)
            if who.doing == "generating" or (who.doing == "moving" and who.target is None):
                self._wait(who)
            self._count(who, +1)
            self._changed(other)
        del self.replicas[number]

    def _house(self, who: Running, number: int) -> None:
        if who.replica != number:
            self._unhouse(who)
            self.replicas[number].placed[who.name] = who
            who.replica = number
        who.cache = "keep"

    def _unhouse(self, who: Running) -> None:
        if who.replica is not None:
            del self.replicas[who.replica].placed[who.name]
            who.replica = None
        who.cache = "drop"

    def _count(self, who: Running, sign: int) -> None:
        """Add what a trajectory takes up to the replicas it touches, or take it off."""
        replica, target = who.replica, who.target
        if replica is None and target is None:
            return
        context = sign * (who.history.context + who.fresh)
        if replica is not None:
            here = self.replicas[replica]
            if who.cache == "keep":
                here.tokens += context
            if who.doing == "generating":
                here.busy += sign
                here.active += context
        if target is not None:
            there = self.replicas[target]
            there.tokens += context
            there.busy += sign
            there.active += context

    def _changed(self, one: int | None, other: int | None = None) -> None:
        """Tell whoever watches."""
        if one is not None:
            self._watch(self.replicas[one])
        if other is not None:
            self._watch(self.replicas[other])


_TAKEN: dict[type[RolloutEvent], Callable[[Rollouts, Any], Running | None]] = {
    Begun: Rollouts._begin,
    Moved: Rollouts._moved,
    Called: Rollouts._called,
    Returned: Rollouts._returned,
    Ended: Rollouts._end,
    Aborted: Rollouts._remove,
    Paused: Rollouts._paused,
    Resumed: Rollouts._resumed,
    Sent: Rollouts._sent,
    ReplicaUp: Rollouts._up,
    ReplicaDown: lambda rollouts, event: rollouts._lose(event.replica),
}
"""How each kind of event is taken in: looked up, since a chain of patterns would take as long as what follows."""
