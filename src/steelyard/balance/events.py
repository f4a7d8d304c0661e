"""What the core is told, by a simulator in virtual time or by a live driver. Times are the driver's own."""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.workload.trajectories import Turn


@dataclass(frozen=True, slots=True)
class ReplicaUp:
    """An engine can take trajectories: its tensor-parallel degree, requests it runs at once, tokens its cache holds."""

    at: float
    replica: int
    tp: int
    seats: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ReplicaDown:
    """An engine is gone, and with it the caches of all that were placed there; they wait to be placed again."""

    at: float
    replica: int


@dataclass(frozen=True, slots=True)
class Begun:
    """A trajectory wants its first turn. ``version`` is that of the weights it begins with."""

    at: float
    trajectory: str
    prompt: str
    prompt_tokens: int
    version: int = 0


@dataclass(frozen=True, slots=True)
class Moved:
    """What another replica had cached for a trajectory has come to the one it was placed on: its turn starts.

    Until then it holds its place on both. A driver that does not say so is taken to have moved it by the turn's end.
    """

    at: float
    trajectory: str


@dataclass(frozen=True, slots=True)
class Called:
    """A turn is over, and its tool is running."""

    at: float
    trajectory: str
    generated: int


@dataclass(frozen=True, slots=True)
class Returned:
    """A tool has returned: the trajectory wants its next turn."""

    at: float
    trajectory: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class Ended:
    """A trajectory is done; ``turn`` is its last."""

    at: float
    trajectory: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class Aborted:
    """A trajectory was given up, on command or by whoever asked for it."""

    at: float
    trajectory: str


RolloutEvent = ReplicaUp | ReplicaDown | Begun | Moved | Called | Returned | Ended | Aborted
