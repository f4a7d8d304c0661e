"""A trajectory under way at the gateway: where it stands between its client, the core and an engine."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from steelyard.balance.commands import Cache, Place
from steelyard.live.journal import StoredTurn
from steelyard.live.turns import TurnSoFar
from steelyard.live.upstream import UpstreamAnswer
from steelyard.records import Outcome, Turn


class TurnRefused(Exception):
    """A turn that cannot be had, with the status of HTTP that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ToolReturn(NamedTuple):
    """What a client has told about a tool's return."""

    tool: str
    outcome: Outcome
    tokens: int | None


@dataclass(eq=False)
class LiveTrajectory:
    """A trajectory under way. ``turn`` is the number of its current turn, or of the next while its tool runs."""

    name: str
    group: str
    version: int
    context: int  # tokens after its last whole turn
    epoch: int = 0
    turn: int = 0
    generated: int = 0  # tokens of whole turns
    last: int = 0  # tokens of the last whole turn
    doing: Literal["waiting", "running", "tool"] = "waiting"
    cache: Cache = "keep"  # where its cache was put while its tool ran
    cached_by: int = -1  # version of the weights that made its cache
    held: bool = False
    wanted: Turn | None = None  # the turn that is over, if its tool returned while it was held
    since: int = 0  # tokens since it began or was resumed
    placed: Place | None = None
    place_came: asyncio.Event = field(default_factory=asyncio.Event)
    so_far: TurnSoFar = field(default_factory=TurnSoFar)
    task: asyncio.Task[StoredTurn] | None = None
    asked: UpstreamAnswer | None = None  # the engine's answer that is awaited or read
    stopping: bool = False  # the engine was asked to stop this turn
    seen: float = field(default_factory=time.monotonic)  # when its client was last heard of
    called: float = field(default_factory=time.monotonic)
    tool: ToolReturn | None = None
    chunks: list[bytes] = field(default_factory=list)  # of a turn that is streamed to its client
    chunk_came: asyncio.Event = field(default_factory=asyncio.Event)

    def abandon(self) -> None:
        """Nobody wants what its engine answers any more."""
        if self.asked is not None:
            self.asked.abandon()
