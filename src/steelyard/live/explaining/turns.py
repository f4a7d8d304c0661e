"""Where turns run, what becomes of caches, and which replicas come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite

from steelyard.balance.commands import Cache, Park, Place
from steelyard.balance.core import Core
from steelyard.balance.events import (
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
from steelyard.balance.kinds import Command
from steelyard.balance.rollouts import Running
from steelyard.live.explaining.samples import SampleSentences
from steelyard.live.explaining.sentence import Explained, counted

_RULES = {
    "round-robin": "it is the next in turn",
    "least-outstanding": "it has the fewest turns",
    "power-of-two": "it is the less busy of two that were drawn",
    "cost-aware": "predicted finish times rise least there",
}
"""What routers go by, where that is one thing."""


class TurnSentences:
    """Sentences about turns. ``before`` is called before an event is decided, the others after it."""

    def __init__(self, core: Core, router: str, samples: SampleSentences) -> None:
        self._rollouts = core.placement.rollouts
        self._rule = _RULES.get(router, f"chosen by {router}")
        self._samples = samples
        self._offloaded: set[str] = set()  # trajectories whose cache is in a host's memory
        self._lost = 0, 0  # with a replica: turns and caches
        self._was_up = False
        self._own: Running | None = None  # the trajectory of the event at hand

    def before(self, event: RolloutEvent) -> None:
        if isinstance(event, ReplicaUp | ReplicaDown):
            replica = self._rollouts.replicas.get(event.replica)
            self._was_up = replica is not None
            placed = [] if replica is None else list(replica.placed.values())
            self._lost = sum(each.doing == "generating" for each in placed), len(placed)
        else:
            self._own = self._rollouts.running.get(event.trajectory)

    def event(self, event: RolloutEvent, commands: Sequence[Command]) -> Iterator[Explained]:
        """What has happened, before what follows from it."""
        if isinstance(event, ReplicaUp | ReplicaDown):
            yield self._replica(event)
            return
        said = self._said(event, commands)
        if said is not None:
            kind, what = said
            yield self._of(event.at, kind, event.trajectory, what)

    def _said(self, event: RolloutEvent, commands: Sequence[Command]) -> tuple[str, str] | None:
        own = self._own
        match event:
            case Begun():
                had = f" after {counted(len(event.turns), 'turn')}" if event.turns else ""
                prompt = f"{event.prompt_tokens:,} tokens of prompt"
                return "begin", f"begins{had} in group {event.group or 'none'}, with weights {event.version}; {prompt}"
            case Called():
                return "park", f"calls a tool after {event.generated:,} tokens; {self._parked(commands)}"
            case Paused():
                return "park", f"has paused after {event.generated:,} tokens; {self._parked(commands)}"
            case Moved() if own is not None:
                return "move", f"has its cache on replica {own.replica}, and its turn starts"
            case Sent() if own is not None and own.in_tool:
                return "move", f"has its cache sent to replica {event.replica}"
            case Ended() if own is not None:
                turns, generated = len(own.history.turns), own.history.generated
                return "end", f"has ended after {counted(turns, 'turn')} and {generated:,} tokens"
        return None

    def place(self, command: Place, event: RolloutEvent, later: Sequence[Command]) -> Explained:
        """Where a turn goes. ``later`` are the commands after this one."""
        name, number = command.trajectory, command.replica
        trajectory, replica = self._rollouts.running[name], self._rollouts.replicas[number]
        taken = replica.busy - sum(isinstance(each, Place) and each.replica == number for each in later)
        queued = f"all {replica.seats:,} seats are taken and {taken - replica.seats:,} queue"
        seats = f"{taken:,} of {replica.seats:,} seats are taken" if taken <= replica.seats else queued
        reasons = [self._cached(command, trajectory), seats]
        if trajectory.left.mean > 0 and isfinite(trajectory.left.p90):
            reasons.append(f"about {trajectory.left.mean:,.0f} tokens are left")
        if isinstance(event, Sent) and event.trajectory == name:
            reasons.append("it was sent there")
        elif command.source != number:
            reasons.append(self._rule)
        self._offloaded.discard(name)
        return self._of(event.at, "place", name, f"goes to replica {number} (TP{replica.tp}): {', '.join(reasons)}")

    def waits(self, event: RolloutEvent) -> Iterator[Explained]:
        """That a trajectory wants a turn and gets none yet."""
        if not isinstance(event, Begun | Returned | Resumed) or event.trajectory not in self._rollouts.waiting:
            return
        replicas = self._rollouts.replicas.values()
        free = sum(max(0, each.free_seats) for each in replicas)
        seats = f"{free:,} of {sum(each.seats for each in replicas):,} seats are free"
        what = f"waits for a turn: {seats}, {counted(len(self._rollouts.waiting), 'trajectory')} in line"
        yield self._of(event.at, "wait", event.trajectory, what)

    def _replica(self, event: ReplicaUp | ReplicaDown) -> Explained:
        subject = f"replica {event.replica}"
        if isinstance(event, ReplicaUp):
            again = "has started anew, without its caches" if self._was_up else "is up"
            what = f"{again}: TP{event.tp}, {event.seats:,} seats, {event.tokens:,} tokens of cache"
        else:
            turns, caches = self._lost
            what = f"is down: {counted(turns, 'turn')} to be run elsewhere, {counted(caches, 'cache')} lost"
        return Explained(event.at, "replica", subject, f"{subject} {what}")

    def _parked(self, commands: Sequence[Command]) -> str:
        for command in commands:
            if isinstance(command, Park):
                if command.cache == "offload":
                    self._offloaded.add(command.trajectory)
                return _PARKED[command.cache]
        return "its cache is lost"

    def _cached(self, command: Place, trajectory: Running) -> str:
        """Where its cache is, and what becomes of it."""
        context = f"{trajectory.context:,} tokens"
        if command.source is None:
            first = not trajectory.history.turns and not trajectory.fresh
            return "it has no cache yet" if first else f"its cache is lost, so {context} are computed again"
        if command.source == command.replica:
            offloaded = command.trajectory in self._offloaded
            return "its cache is in the host's memory there" if offloaded else "its cache is there"
        if command.cache == "keep":
            return f"its cache of {context} moves there from replica {command.source}"
        return f"its cache on replica {command.source} is dropped, and {context} are computed again"

    def _of(self, at: float, kind: str, name: str, what: str) -> Explained:
        return Explained(at, kind, name, f"trajectory {name} {what}", self._samples.step_of(name))


_PARKED: dict[Cache, str] = {
    "keep": "its cache stays where it is",
    "offload": "its cache goes to the host's memory",
    "drop": "its cache is dropped",
}
