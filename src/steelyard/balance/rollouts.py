"""The core's picture of a rollout: replicas, the trajectories on them and those that wait. Events alone change it.

Whenever a trajectory goes elsewhere, its load is subtracted from the replicas it touches, and its new load is added. So
loads are always sums over trajectories, and an event costs the same however many there are.

Reports of a real cluster can be late, repeated or out of order. `accepts` decides by epochs which of them count. The
others are never applied, so no seat is taken twice and none is lost.
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

_OfEpoch = Moved | Called | Ended | Returned | Paused | Resumed | Sent | Aborted
_REMEMBERED = 1 << 16  # ended trajectories whose epochs are kept: reports about them can still come


@dataclass(slots=True)
class Running:
    """A running trajectory. Its ``replica`` is where its cache is, also while a tool runs.

    Its ``epoch`` counts how often it was placed, resumed or sent. Reports with an earlier epoch are late.
    """

    history: History
    version: int
    since: float  # when it began, or its last tool returned
    left: Left = UNKNOWN
    doing: Doing = "waiting"
    replica: int | None = None
    cache: Cache = "drop"  # where its cached tokens are: on the GPU, in the host's memory, or nowhere
    target: int | None = None  # while it moves: the replica with a seat reserved for it
    fresh: int = 0  # tokens of a turn whose tool is running
    epoch: int = 0
    begun_epoch: int = 0  # the epoch that it began with
    lost: bool = False  # its replica went down in the middle of its turn, and it has not been placed since
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.history.trajectory

    @property
    def in_tool(self) -> bool:
        """Whether it wants no turn now: its tool is running, or it has paused."""
        return self.doing in ("tool", "paused")

    @property
    def context(self) -> int:
        """Tokens at the start of its next turn."""
        return self.history.context + self.fresh


@dataclass(slots=True)
class Replica:
    """An engine and the trajectories placed on it."""

    number: int
    tp: int
    seats: int
    capacity: int  # tokens of its cache
    epoch: int = 0  # counts how often it has come up
    placed: dict[str, Running] = field(default_factory=dict)
    coming: dict[str, Running] = field(default_factory=dict)  # have a seat reserved; caches are on the way
    busy: int = 0  # seats taken by trajectories that generate, queue in the engine or are coming
    active: int = 0  # context tokens of these
    tokens: int = 0  # context tokens of all trajectories whose cache is or will be on its GPUs

    @property
    def free_seats(self) -> int:
        """Negative if requests queue."""
        return self.seats - self.busy


class Rollouts:
    """Which trajectory is where. Trajectories without a replica wait in line."""

    def __init__(
        self,
        waiting: Line[Running] | None = None,
        watch: Callable[[Replica], object] = lambda _: None,
        gone: Callable[[int], object] = lambda _: None,
    ) -> None:
        self.replicas: dict[int, Replica] = {}
        self.running: dict[str, Running] = {}
        self.waiting: Line[Running] = Line() if waiting is None else waiting
        self.awaited: set[int] = set()  # replicas that must be up before anything is placed
        self._watch = watch  # called with each replica whose load has changed
        self._gone = gone  # called with the number of each replica that is about to be lost
        self._over: dict[str, int] = {}  # last epochs of ended trajectories, oldest first
        self._down: dict[int, int] = {}  # last epochs of replicas that are down

    def next_epoch(self, number: int) -> int:
        """The epoch that a replica's next `ReplicaUp` must have."""
        there = self.replicas.get(number)
        return 1 + (self._down.get(number, -1) if there is None else there.epoch)

    def accepts(self, event: RolloutEvent) -> Reason | None:
        """Why an event does not count; None if it does."""
        return _ACCEPTS[type(event)](self, event)

    def _accepts_report(self, event: Moved | Called | Ended | Returned | Paused) -> Reason | None:
        """It has to be about the current placement, and about what the trajectory is doing."""
        running = self.running.get(event.trajectory)
        if running is None or event.epoch != running.epoch:
            return self._misses(event, running)
        counts = running.doing in _COUNTS_WHILE[type(event)] or (running.lost and isinstance(event, Called | Ended))
        return None if counts else "repeated"

    def _accepts_next(self, event: Resumed | Sent) -> Reason | None:
        """It begins the epoch after the current one."""
        running = self.running.get(event.trajectory)
        if running is None or event.epoch != running.epoch + 1:
            return self._misses(event, running, 1)
        if isinstance(event, Sent):
            return None if event.replica in self.replicas else "unknown replica"
        return None if running.doing == "paused" else "repeated"

    def _misses(self, event: _OfEpoch, running: Running | None, ahead: int = 0) -> Reason:
        if running is None:
            return "late" if event.trajectory in self._over else "unknown trajectory"
        return "late" if event.epoch < running.epoch + ahead else "out of order"

    def _accepts_begun(self, event: Begun) -> Reason | None:
        running = self.running.get(event.trajectory)
        if running is not None:
            return "repeated" if event.epoch <= running.epoch else "out of order"
        return None if event.epoch > self._over.get(event.trajectory, -1) else "late"

    def _accepts_aborted(self, event: Aborted) -> Reason | None:
        """It counts for any placement since the trajectory began."""
        running = self.running.get(event.trajectory)
        if running is None:
            return self._misses(event, None)
        return None if event.epoch >= running.begun_epoch else "late"

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
        """Apply an accepted event. Returns the trajectory that it is about, if any."""
        return _APPLIED[type(event)](self, event)

    def place(self, trajectory: Running, number: int, cache: Cache = "keep") -> int | None:
        """Run its next turn on a replica. Returns the replica where it was cached before.

        A moving cache stays on its source until it has arrived, with a seat reserved on the target. So if the target
        is lost, the cache is not.
        """
        source, before = trajectory.replica, trajectory.target
        trajectory.epoch += 1
        trajectory.lost = False
        self.waiting.discard(trajectory.name)
        self._count(trajectory, -1)
        if before is not None:  # sent elsewhere before it arrived
            del self.replicas[before].coming[trajectory.name]
            trajectory.target = None
            self._watch(self.replicas[before])
        if source is not None and source != number and cache == "keep":
            trajectory.target = number
            trajectory.doing = "moving"
            self.replicas[number].coming[trajectory.name] = trajectory
        else:
            self._house(trajectory, number)
            trajectory.doing = "generating"
        self._count(trajectory, +1)
        self._changed(source if source != number else None, number)
        return source

    def park(self, trajectory: Running, cache: Cache) -> None:
        """Set what happens to its cache while its tool runs."""
        if trajectory.cache == cache and cache != "drop":
            return
        assert trajectory.replica is not None and trajectory.in_tool, (
            "only trajectories without a running turn are parked"
        )
        here = self.replicas[trajectory.replica]
        if trajectory.cache == "keep":
            here.tokens -= trajectory.context
        trajectory.cache = cache
        if cache == "keep":
            here.tokens += trajectory.context
        elif cache == "drop":
            self._unhouse(trajectory)
        self._watch(here)

    def _begin(self, event: Begun) -> Running:
        trajectory = Running(History(event.trajectory, event.prompt, event.prompt_tokens), event.version, event.at)
        trajectory.epoch = trajectory.begun_epoch = event.epoch
        for turn in event.turns:
            trajectory.history.add(turn)
        trajectory.fresh = event.fresh
        self.running[trajectory.name] = trajectory
        return self._wait(trajectory)

    def _end(self, event: Ended) -> Running:
        trajectory = self._remove(event)
        trajectory.fresh = 0
        trajectory.history.add(event.turn)
        return trajectory

    def _called(self, event: Called) -> Running:
        return self._stop(self.running[event.trajectory], event.generated)

    def _paused(self, event: Paused) -> Running:
        trajectory = self.running[event.trajectory]
        return self._stop(trajectory, event.generated - trajectory.history.generated, "paused")

    def _returned(self, event: Returned) -> Running:
        trajectory = self.running[event.trajectory]
        before = trajectory.context
        trajectory.fresh = 0
        trajectory.history.add(event.turn)
        trajectory.since = event.at
        if trajectory.replica is not None:
            here = self.replicas[trajectory.replica]
            if trajectory.cache == "keep":
                here.tokens += trajectory.context - before
            self._watch(here)
        return self._wait(trajectory)

    def _resumed(self, event: Resumed) -> Running:
        trajectory = self.running[event.trajectory]
        trajectory.epoch = event.epoch
        return self._wait(trajectory)

    def _moved(self, event: Moved) -> Running:
        return self._arrive(self.running[event.trajectory])

    def _sent(self, event: Sent) -> Running:
        trajectory, number = self.running[event.trajectory], event.replica
        if not trajectory.in_tool:
            self.place(trajectory, number)
            return trajectory
        source = trajectory.replica
        trajectory.epoch = event.epoch
        self._count(trajectory, -1)
        self._house(trajectory, number)
        self._count(trajectory, +1)
        self._changed(source, number)
        return trajectory

    def _wait(self, trajectory: Running) -> Running:
        trajectory.doing = "waiting"
        self.waiting.add(trajectory.name, trajectory)
        return trajectory

    def _arrive(self, trajectory: Running) -> Running:
        """Its cache has arrived. Does nothing if it is not moving."""
        source, target = trajectory.replica, trajectory.target
        if target is None:
            return trajectory
        self._count(trajectory, -1)
        del self.replicas[target].coming[trajectory.name]
        trajectory.target = None
        self._house(trajectory, target)
        trajectory.doing = "generating"
        self._count(trajectory, +1)
        self._changed(source, target)
        return trajectory

    def _stop(self, trajectory: Running, generated: int, doing: Doing = "tool") -> Running:
        """It stops generating for now."""
        if trajectory.target is not None:
            self._arrive(trajectory)
        if trajectory.doing == "waiting":
            self.waiting.discard(trajectory.name)
        if trajectory.replica is not None:
            here = self.replicas[trajectory.replica]
            if trajectory.cache == "keep":
                here.tokens += generated - trajectory.fresh
            if trajectory.doing == "generating":
                here.busy -= 1
                here.active -= trajectory.context
            self._watch(here)
        trajectory.doing = doing
        trajectory.fresh = generated
        trajectory.lost = False
        return trajectory

    def _remove(self, event: Ended | Aborted) -> Running:
        trajectory = self.running.pop(event.trajectory)
        self._over.pop(trajectory.name, None)
        self._over[trajectory.name] = trajectory.epoch
        if len(self._over) > _REMEMBERED:
            del self._over[next(iter(self._over))]
        source, target = trajectory.replica, trajectory.target
        self.waiting.discard(trajectory.name)
        self._count(trajectory, -1)
        if target is not None:
            del self.replicas[target].coming[trajectory.name]
            trajectory.target = None
        self._unhouse(trajectory)
        self._changed(source, target)
        return trajectory

    def _up(self, event: ReplicaUp) -> None:
        if event.replica in self.replicas:
            self._lose(event.replica)
        added = Replica(event.replica, event.tp, event.seats, event.tokens, event.epoch)
        self.replicas[event.replica] = added
        self._down.pop(event.replica, None)
        self.awaited.discard(event.replica)
        self._watch(added)

    def _go_down(self, event: ReplicaDown) -> None:
        self._down[event.replica] = event.epoch
        self._lose(event.replica)

    def _lose(self, number: int) -> None:
        """Trajectories that generated there wait again. So do those on their way there, which keep their caches."""
        self._gone(number)
        lost = self.replicas[number]
        for trajectory in [*lost.placed.values(), *lost.coming.values()]:
            other = trajectory.replica if trajectory.target == number else trajectory.target
            self._count(trajectory, -1)
            if trajectory.target == number:
                trajectory.target = None
            else:
                self._unhouse(trajectory)
            if trajectory.doing == "generating" or (trajectory.doing == "moving" and trajectory.target is None):
                self._wait(trajectory)
                trajectory.lost = True
            self._count(trajectory, +1)
            self._changed(other)
        del self.replicas[number]

    def _house(self, trajectory: Running, number: int) -> None:
        if trajectory.replica != number:
            self._unhouse(trajectory)
            self.replicas[number].placed[trajectory.name] = trajectory
            trajectory.replica = number
        trajectory.cache = "keep"

    def _unhouse(self, trajectory: Running) -> None:
        if trajectory.replica is not None:
            del self.replicas[trajectory.replica].placed[trajectory.name]
            trajectory.replica = None
        trajectory.cache = "drop"

    def _count(self, trajectory: Running, sign: int) -> None:
        """Add a trajectory's load to the replicas it touches, or subtract it."""
        replica, target = trajectory.replica, trajectory.target
        if replica is None and target is None:
            return
        context = sign * (trajectory.history.context + trajectory.fresh)
        if replica is not None:
            here = self.replicas[replica]
            if trajectory.cache == "keep":
                here.tokens += context
            if trajectory.doing == "generating":
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
"""How each kind of event is applied. A lookup, since a chain of patterns would take as long as the work itself."""

_ACCEPTS: dict[type[RolloutEvent], Callable[[Rollouts, Any], Reason | None]] = {
    Begun: Rollouts._accepts_begun,
    Moved: Rollouts._accepts_report,
    Called: Rollouts._accepts_report,
    Returned: Rollouts._accepts_report,
    Ended: Rollouts._accepts_report,
    Aborted: Rollouts._accepts_aborted,
    Paused: Rollouts._accepts_report,
    Resumed: Rollouts._accepts_next,
    Sent: Rollouts._accepts_next,
    ReplicaUp: Rollouts._accepts_replica,
    ReplicaDown: Rollouts._accepts_replica,
}

_GENERATES: tuple[Doing, ...] = ("generating", "moving")
_COUNTS_WHILE: dict[type[RolloutEvent], tuple[Doing, ...]] = {
    Moved: ("moving",),
    Called: _GENERATES,
    Ended: (*_GENERATES, "tool"),  # a live driver learns from its client, after the turn, that it was the last
    Returned: ("tool",),
    Paused: ("waiting", "generating", "moving"),
}
"""What a trajectory must be doing for a report about its current placement to count. One whose replica went down waits
again. Until it is placed elsewhere, the end of its turn counts all the same: its last tokens were on their way."""
