"""What the core is told, by a simulator in virtual time or by a live driver. Times are the driver's own.

Those that come with every turn are not frozen, which would make each take several times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass

from steelyard.records import Turn


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


@dataclass(slots=True)
class Begun:
    """A trajectory wants its first turn. ``version`` is that of the weights it begins with.

    One that was given up and goes on has had some ``turns``, and so many tokens of the one that comes now.
    """

    at: float
    trajectory: str
    prompt: str
    prompt_tokens: int
    version: int = 0
    turns: tuple[Turn, ...] = ()
    fresh: int = 0


@dataclass(slots=True)
class Moved:
    """What another replica had cached for a trajectory has come to the one it was placed on: its turn starts.

    Until then it holds its place on both. A driver that does not say so is taken to have moved it by the turn's end.
    """

    at: float
    trajectory: str


@dataclass(slots=True)
class Called:
    """A turn is over, and its tool is running."""

    at: float
    trajectory: str
    generated: int


@dataclass(slots=True)
class Returned:
    """A tool has returned: the trajectory wants its next turn."""

    at: float
    trajectory: str
    turn: Turn


@dataclass(slots=True)
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


@dataclass(frozen=True, slots=True)
class Paused:
    """A trajectory stops for now, within a turn or before it; ``generated`` counts all its tokens. It keeps its place
    and its cache, as one whose tool is running does."""

    at: float
    trajectory: str
    generated: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """It wants the rest of its turn; ``left`` is what somebody knows of the tokens it still has to generate."""

    at: float
    trajectory: str
    left: int | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """Somebody other than the router sends a trajectory to a replica: its turn goes on there, or, while its tool runs
    or it has paused, its cache goes there."""

    at: float
    trajectory: str
    replica: int


RolloutEvent = ReplicaUp | ReplicaDown | Begun | Moved | Called | Returned | Ended | Aborted | Paused | Resumed | Sent


@dataclass(frozen=True, slots=True)
class Generated:
    """A trajectory has so many more tokens, all by weights of one version. Tell it before weights change, and before
    it ends."""

    at: float
    trajectory: str
    version: int
    tokens: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Nobody waits for these groups any more: they are too stale, or will begin anew. For those who count groups."""

    at: float
    groups: tuple[str, ...]
