"""States of replicas over virtual time, and how long each replica was in each state."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum


class ReplicaState(Enum):
    """Whether a replica exists and serves."""

    OFF = "off"  # its GPUs are free for others
    STARTING = "starting"
    UP = "up"
    DRAINING = "draining"  # finishes its requests and gets no new ones
    DOWN = "down"  # crashed, and restarting


PRESENT_OR_COMING = (ReplicaState.UP, ReplicaState.STARTING, ReplicaState.DOWN)
SERVES = (ReplicaState.UP, ReplicaState.DRAINING)
HELD = (ReplicaState.STARTING, ReplicaState.UP, ReplicaState.DRAINING, ReplicaState.DOWN)


class Uptime:
    """The states of all replicas, and every change. All start off."""

    def __init__(self, replicas: int) -> None:
        self.states = [ReplicaState.OFF] * replicas
        self.changes: list[tuple[float, int, ReplicaState]] = []  # (second, replica, new state)

    def set(self, replica: int, state: ReplicaState, now: float) -> None:
        """Change the state of a replica."""
        self.states[replica] = state
        self.changes.append((now, replica, state))

    def among(self, replicas: Sequence[int], states: Collection[ReplicaState]) -> list[int]:
        """The given replicas that are in one of these states."""
        return [replica for replica in replicas if self.states[replica] in states]

    def seconds(self, replicas: Collection[int], states: Collection[ReplicaState], start: float, end: float) -> float:
        """Replica-seconds in these states between two moments."""
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

    def counts(self, replicas: Collection[int], states: Collection[ReplicaState]) -> list[tuple[float, int]]:
        """(second, replicas in these states from then on), one entry per change."""
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
