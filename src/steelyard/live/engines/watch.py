"""Looks at engines on a period, and tells when their condition changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable

from steelyard.live.engines.api import EngineApi, EngineError, EngineLoad
from steelyard.live.engines.condition import Condition, EngineJudge, Look, Pace, Slow, Up, WatchRules
from steelyard.live.engines.launch import EngineHost

_PERIOD_SECONDS = 1.0  # between two looks; chosen, as the gateway's


class EngineWatch:
    """Watches one engine.

    ``peers`` are the watches of engines that should be as fast: one list for all of a pool, this one included. Set
    ``paused`` while the engine is paused on purpose, so that it is not called slow.
    """

    def __init__(
        self,
        api: EngineApi,
        host: EngineHost | None = None,
        peers: Iterable[EngineWatch] = (),
        rules: WatchRules | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.api = api
        self.paused = False
        self.condition: Condition = Up()
        self.load: EngineLoad | None = None  # at the last look
        self._host, self._peers, self._clock = host, peers, clock
        self._judge = EngineJudge(rules)

    @property
    def pace(self) -> Pace | None:
        """How fast it was lately."""
        return self._judge.pace

    def quarantine(self, reason: str) -> None:
        """Say that it must not be used."""
        self._judge.quarantined = reason

    def release(self) -> None:
        """End its quarantine."""
        self._judge.quarantined = ""

    async def look(self) -> Condition:
        """Look once."""
        paused = self.paused
        healthy = await self.api.health()
        self.load = await self._load() if healthy else None
        ended = self._host.ended if self._host is not None else ""
        look = Look(self._clock(), healthy, self.load, ended, paused or self.paused)
        others = [peer.pace for peer in self._peers if peer is not self and peer.pace is not None]
        self.condition = self._judge.see(look, others)
        return self.condition

    async def changes(self, period: float = _PERIOD_SECONDS) -> AsyncIterator[Condition]:
        """Its condition at the first look, and then at each change. Slow is one condition, whatever the factor."""
        told: Condition | None = None
        while True:
            found = await self.look()
            if found != told and not (isinstance(found, Slow) and isinstance(told, Slow)):
                told = found
                yield found
            await asyncio.sleep(period)

    async def _load(self) -> EngineLoad | None:
        try:
            return await self.api.load()
        except EngineError:
            return None  # its health says whether that matters
