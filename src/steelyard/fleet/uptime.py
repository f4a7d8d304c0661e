"""Which replicas are there, and since when: states in virtual time, and how long each was in which."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum


class State(Enum):
    """What a replica is doing, other than serving faster or slower."""

    OFF = "off"  # its GPUs are somebody else's
    STARTING = "starting"
    UP = "up"
    DRAINING = "draining"  # serves what it has, and gets nothing new
    DOWN = "down"  # crashed, and restarting


COMES_OR_IS = (State.UP, State.STARTING, State.DOWN)
SERVES = (State.UP, State.DRAINING)
HELD = (State.STARTING, State.UP, State.DRAINING, State.DOWN)


class Uptime:
    """The states of all replicas, and every change of them. All begin off."""

    def __init__(self, replicas: int) -> None:
        self.states = [State.OFF] * replicas
        self.changes: list[tuple[float, int, State]] = []  # (second, replica, since then)

    def set(self, replica: int, state: State, now: float) -> None:
        """A replica is in another state from now on."""
        self.states[replica] = state
        self.changes.append((now, replica, state))

    def among(self, replicas: Sequence[int], states: Collection[State]) -> list[int]:
        """Those of some replicas that are in one of these states."""
        return [replica for replica in replicas if self.states[replica] in states]

    def seconds(self, replicas: Collection[int], states: Collection[State], start: float, end: float) -> float:
        """How long they were in one of these states between two moments, added up."""
        total = 0.0
        since: dict[int, float] = {}
        for at, replica, state in self.changes:
            if replica not in replicas:
                continue
            if state in states:
                since.setdefault(replica, at)
            elif replica in since:
                total += max(0.0, min(at, end) - max(since.pop(replica), start))
        return total + sum(max(0.0, end - max(at, start)) for at in since.values())

    def counts(self, replicas: Collection[int], states: Collection[State]) -> list[tuple[float, int]]:
        """How many of them were in one of these states, and since when each time that changed."""
        found: list[tuple[float, int]] = []
        inside: set[int] = set()
        for at, replica, state in self.changes:
            if replica in replicas:
                (inside.add if state in states else inside.discard)(replica)
                if found and found[-1][0] == at:
                    found.pop()
                if not found or found[-1][1] != len(inside):
                    found.append((at, len(inside)))
        return found
