"""One trajectory on engines: its progress, and the weights that made its tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from steelyard.balance.commands import Cache
from steelyard.engine import Request
from steelyard.engine.content import NO_NAMES, Chain, Names
from steelyard.records import Trajectory, Turn


@dataclass(eq=False, slots=True)
class StoppedEngine:
    """Caches wait on the GPUs of an engine that has stopped, and leave one after the other over its links."""

    node: int
    inside: float  # seconds per token to engines of its node
    outside: float  # to others
    free: float = 0.0  # when its links are


@dataclass(slots=True)
class Attempt:
    """A running trajectory and its progress: whole turns, and tokens of the current one.

    ``version`` is that of the weights that it began with.
    """

    trajectory: Trajectory
    version: int
    begun: float
    round: float = 0.0  # when the first of its batch began
    turns: int = 0
    tokens: int = 0
    context: int = 0
    chain: Chain = ()  # its key in caches; new weights invalidate it
    names: Names = NO_NAMES  # of its blocks, made on demand
    cache: Cache = "keep"
    request: Request | None = None  # its turn, once it has been placed
    submitted: bool = False  # whether the engine has it
    replica: int = -1
    epoch: int = -1  # of its last placement, which reports carry
    ticket: int = 0  # of the tool or transfer that it waits for
    ended: float = inf
    versions: dict[int, int] = field(default_factory=dict)  # tokens by the weights that generated them
    counted: int = 0  # tokens of its request that are included in ``versions``
    since: int = 0  # tokens since it began or was last resumed
    held: bool = False  # paused
    returned: bool = False  # its tool returned while it was paused
    priority: int | None = None  # instead of the router's
    sent: int = 0  # tokens of its cache that were sent to where it is now, while it was not generating
    arrives: float = 0.0  # when they arrive
    kept: int = 0  # tokens of its cache that wait where its engine has stopped
    kept_by: StoppedEngine | None = None
    rerouted: int = 0  # times that it went on elsewhere than on its last replica
    row: int | None = None  # in the run's record, once it has ended

    @property
    def turn(self) -> Turn:
        """The current turn, or the one whose tool is running."""
        return self.trajectory.turns[self.turns]

    @property
    def in_tool(self) -> bool:
        return self.request is None and self.tokens == self.turn.generated

    @property
    def generated(self) -> int:
        """All tokens so far."""
        return sum(self.versions.values())

    @property
    def oldest(self) -> int:
        """The version of its oldest token, or the one it began with while it has none."""
        return min(self.versions, default=self.version)

    def count(self, tokens: int, version: int) -> int:
        """Its request has generated this many tokens; new ones were made by weights of this version."""
        new = tokens - self.counted
        if new > 0:
            self.counted = tokens
            self.versions[version] = self.versions.get(version, 0) + new
        return new

    def keep(self, tokens: int) -> None:
        """Keep this many tokens of its turn, which its request has generated."""
        self.tokens += tokens
        self.context += tokens
        self.since += tokens
        self.request = None

    def next_turn(self) -> Turn:
        """Its tool has returned. Returns the turn that has ended."""
        over = self.trajectory.turns[self.turns]
        self.context += over.returned
        self.turns += 1
        self.tokens = 0
        return over
