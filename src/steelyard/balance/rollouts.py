"""The core's picture of a rollout: replicas, the trajectories on them and those that wait. Events alone change it.

Whenever a trajectory changes, what it takes up is subtracted from the replicas it touches, and what it takes up
afterwards is added. So loads are always sums over trajectories, at a cost that does not grow with their number.

Reports of a real cluster can be late, repeated or out of order. `accepts` says which of them count, by epochs; those
that do not are never applied, so no seat is taken twice and none is lost.
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

Doing = Literal["waiting", "moving", "generating", "tool", "paused"]
Reason = Literal["unknown trajectory", "unknown replica", "late", "repeated", "out of order"]
"""Why an event does not count."""

_REMEMBERED = 1 << 16  # trajectories that are over whose epochs are kept: reports of them can still come


@dataclass(slots=True)
class Running:
    """A trajectory under way. Its ``replica`` is where its cache lies, also while a tool runs.

    Its ``epoch`` counts its placements, and how often it was resumed or sent. Reports of an earlier one are late.
    """

    history: History
    version: int
    since: float  # when it began, or its last tool returned
    left: Left = UNKNOWN
    doing: Doing = "waiting"
    replica: int | None = None
    cache: Cache = "drop"  # what became of its cached tokens: on the GPU, in the host's memory, or nowhere
    target: int | None = None  # while it moves: where it has a seat reserved
    fresh: int = 0  # tokens of a turn whose tool is running
    epoch: int = 0
    begun_epoch: int = 0  # the one it began with
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.history.trajectory

    @property
    def in_tool(self) -> bool:
        """Whether it wants no turn now: its tool is running, or it has paused."""
        return self.doing in ("tool", "paused")

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
    epoch: int = 0  # counts how often it has come up
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
        self._watch = watch  # called with each replica whose load has changed
        self._over: dict[str, int] = {}  # last epochs of trajectories that are over, oldest first
        self._down: dict[int, int] = {}  # last epochs of replicas that are down

    def accepts(self, event: RolloutEvent) -> Reason | None:
        """Why an event does not count; None if it does."""
        if isinstance(event, ReplicaUp | ReplicaDown):
            return self._accepts_replica(event)
        running = self.running.get(event.trajectory)
        last = self._over.get(event.trajectory)
        if isinstance(event, Begun):
            if running is not None:
                return "repeated" if event.epoch <= running.epoch else "out of order"
            return None if last is None or event.epoch > last else "late"
        if running is None:
            return "unknown trajectory" if last is None else "late"
        if isinstance(event, Aborted):  # it holds for any placement of a trajectory, but not for an earlier trajectory
            return None if event.epoch >= running.begun_epoch else "late"
        epoch = running.epoch + isinstance(event, Resumed | Sent)  # these begin an epoch
        if event.epoch != epoch:
            return "late" if event.epoch < epoch else "out of order"
        if isinstance(event, Sent):
            return None if event.replica in self.replicas else "unknown replica"
        return None if running.doing in _COUNTS_WHILE[type(event)] else "repeated"

    def _accepts_replica(self, event: ReplicaUp | ReplicaDown) -> Reason | None:
        there = self.replicas.get(event.replica)
        last = self._down.get(event.replica) if there is None else there.epoch
        if isinstance(event, ReplicaUp):
            if last is None or event.epoch > last:
                return None
            return "repeated" if there is not None and event.epoch == last else "late"
        if there is None:
            return "unknown replica" if last is None else "repeated"
        return None if event.epoch == there.epoch else "late" if event.epoch < there.epoch else "out of order"

    def apply(self, event: RolloutEvent) -> Running | None:
        """Apply an event that is accepted; the trajectory that it is about, if it is about one."""
        return _APPLIED[type(event)](self, event)

    def place(self, who: Running, number: int, cache: Cache = "keep") -> int | None:
        """Its next turn runs there; returns where it was cached before.

        A cache that moves stays on its source until it has arrived, with a seat reserved on the target, so losing the
        target loses nothing else. What does not move is there at once.
        """
        source, before = who.replica, who.target
        who.epoch += 1
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
        who.epoch = who.begun_epoch = event.epoch
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
        return self._stop(who, event.generated - who.history.generated, "paused")

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
        who = self.running[event.trajectory]
        who.epoch = event.epoch
        return self._wait(who)

    def _moved(self, event: Moved) -> Running:
        return self._arrive(self.running[event.trajectory])

    def _sent(self, event: Sent) -> Running:
        who, number = self.running[event.trajectory], event.replica
        if not who.in_tool:
            self.place(who, number)
            return who
        source = who.replica
        who.epoch = event.epoch
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
        """Nothing to do for one that is not moving."""
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

    def _stop(self, who: Running, generated: int, doing: Doing = "tool") -> Running:
        """It generates no more for now."""
        self._arrive(who)
        if who.doing == "waiting":
            self.waiting.discard(who.name)
        self._count(who, -1)
        who.doing = doing
        who.fresh = generated
        self._count(who, +1)
        self._changed(who.replica)
        return who

    def _remove(self, event: Ended | Aborted) -> Running:
        who = self.running.pop(event.trajectory)
        self._over.pop(who.name, None)
        self._over[who.name] = who.epoch
        if len(self._over) > _REMEMBERED:
            del self._over[next(iter(self._over))]
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
        added = Replica(event.replica, event.tp, event.seats, event.tokens, event.epoch)
        self.replicas[event.replica] = added
        self._down.pop(event.replica, None)
        self._watch(added)

    def _go_down(self, event: ReplicaDown) -> None:
        self._down[event.replica] = event.epoch
        self._lose(event.replica)

    def _lose(self, number: int) -> None:
        """Trajectories that generated there wait, and so do those on their way there, whose caches are kept."""
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
        if one is not None:
            self._watch(self.replicas[one])
        if other is not None:
            self._watch(self.replicas[other])


_APPLIED: dict[type[RolloutEvent], Callable[[Rollouts, Any], Running | None]] = {
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
    ReplicaDown: Rollouts._go_down,
}
"""How each kind of event is applied: looked up, since a chain of patterns would take as long as what follows."""

_GENERATES: tuple[Doing, ...] = ("generating", "moving")
_COUNTS_WHILE: dict[type[RolloutEvent], tuple[Doing, ...]] = {
    Moved: ("moving",),
    Called: _GENERATES,
    Ended: _GENERATES,
    Returned: ("tool",),
    Paused: ("waiting", "generating", "moving"),
    Resumed: ("paused",),
}
"""What a trajectory does when a report about its present placement is neither late nor repeated. One that waits again
has lost its placement with a replica: what was generated there does not count."""
