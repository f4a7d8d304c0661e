"""Engines that hang: they answer that they are well, have requests, and make no tokens."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

from steelyard.live.engines.api import EngineApi, EngineError
from steelyard.live.engines.condition import Slow, WatchRules
from steelyard.live.engines.watch import EngineWatch

_PERIOD_SECONDS = 1.0  # between two looks at an engine's metrics; chosen
_TOKEN_SECONDS = 5.0  # for an engine without requests to make one token; chosen
_PROMPT = (1, 2)


class HangWatch:
    """Watches the engines of a run, by number. Without requests, paused, or while it reads a prompt, none hangs."""

    def __init__(self, rules: WatchRules) -> None:
        self._rules = rules
        self._watches: dict[int, EngineWatch] = {}
        self._looked: dict[int, float] = {}

    async def hangs(self, number: int, api: EngineApi, paused: Callable[[], bool]) -> bool:
        """Whether an engine hangs. Looks at most once a second."""
        now = time.monotonic()
        if now - self._looked.get(number, -math.inf) < _PERIOD_SECONDS:
            return False
        self._looked[number] = now
        if number not in self._watches:
            self._watches[number] = EngineWatch(api, None, self._watches.values(), self._rules)
        watch = self._watches[number]
        watch.paused = paused()
        condition = await watch.look()
        if not isinstance(condition, Slow) or condition.factor < math.inf or paused():
            return False
        return await self._is_ready(api)

    def forget(self, number: int) -> None:
        """What was seen of an engine does not hold any more."""
        self._watches.pop(number, None)

    async def generates(self, api: EngineApi) -> bool:
        """Whether an engine makes a token when it is asked to."""
        try:
            async with asyncio.timeout(_TOKEN_SECONDS):
                await api.logprobs(_PROMPT)
        except (EngineError, TimeoutError):
            return False
        return True

    async def _is_ready(self, api: EngineApi) -> bool:
        """Whether it says that it would generate: somebody else may have paused it."""
        try:
            return await api.ready()
        except EngineError:
            return False
