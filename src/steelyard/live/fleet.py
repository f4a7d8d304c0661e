"""Engines behind a gateway: which are up, and which one takes the next request."""

from __future__ import annotations

import asyncio
import json
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from typing import Any

from steelyard.balance.route.protocol import RoutedRequest, Router
from steelyard.live.upstream import Upstream, UpstreamFailure

_TEXT_BLOCK = 64  # characters: about as many as are in a block of 16 tokens
_TOKEN_BLOCK = 16
_MOST_BLOCKS = 512  # of a prompt that routers look at: enough to tell conversations apart
_PROBE_SECONDS = 1.0  # between two looks at each engine
_PATIENCE_SECONDS = 3.0  # for an engine to answer that it is well
TRIES = 3  # engines that a request is sent to until one takes it


class NobodyUp(Exception):
    """No engine can take a request now."""


@dataclass
class Routed:
    """A request on its way: the engine that has it."""

    request: RoutedRequest
    engine: int
    first: bool = True


class EngineFleet:
    """Chooses an engine for each request with a serving router, and tells the router what becomes of it."""

    def __init__(self, engines: list[Upstream], router: Router) -> None:
        self.engines = engines
        self.up = [True] * len(engines)
        self._router = router
        self._numbers = count()

    async def watch(self) -> None:
        """Look at every engine again and again."""
        while True:
            await asyncio.gather(*(self._probe(number) for number in range(len(self.engines))))
            await asyncio.sleep(_PROBE_SECONDS)

    def send(self, body: Mapping[str, Any], session: str | None) -> Routed:
        """Choose an engine for a request."""
        if not any(self.up):
            raise NobodyUp("no engine is up")
        number = next(self._numbers)
        names = block_names(body)
        request = RoutedRequest(
            number,
            session if session is not None else number,
            names,
            len(names) * _TOKEN_BLOCK,
            at=time.monotonic(),
        )
        return Routed(request, self._router.choose(request))

    def elsewhere(self, routed: Routed) -> Routed:
        """The engine of a request has failed before it answered: choose another."""
        self.set_up(routed.engine, False)
        self._router.ended(routed.request, routed.engine)
        if not any(self.up):
            raise NobodyUp("no engine is up")
        return Routed(routed.request, self._router.choose(routed.request))

    def token(self, routed: Routed) -> None:
        """A part of the answer has come."""
        if routed.first:
            routed.first = False
            self._router.first_token(routed.request, routed.engine, time.monotonic())

    def ended(self, routed: Routed, session_over: bool) -> None:
        """A request is over, however it went."""
        self._router.ended(routed.request, routed.engine)
        if session_over:
            self._router.session_ended(routed.request)

    def set_up(self, engine: int, up: bool) -> None:
        """An engine was found up or down."""
        if self.up[engine] != up:
            self.up[engine] = up
            self._router.available(engine, up)
            if not up:
                self.engines[engine].close()

    async def _probe(self, engine: int) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                answer = await self._health(engine)
        except (UpstreamFailure, TimeoutError):
            answer = 0
        self.set_up(engine, answer == 200)

    async def _health(self, engine: int) -> int:
        answer = await self.engines[engine].ask("GET", "/health", {})
        await answer.whole()
        return answer.status


def block_names(body: Mapping[str, Any]) -> list[int]:
    """Names of the blocks that a request's prompt begins with: equal where all up to there is equal."""
    prompt = body.get("prompt")
    if prompt is None:
        prompt = "".join(json.dumps(message) for message in body.get("messages") or ())
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        try:
            data, width = array("q", prompt[: _MOST_BLOCKS * _TOKEN_BLOCK]).tobytes(), _TOKEN_BLOCK * 8
        except (TypeError, OverflowError):
            return []
    elif isinstance(prompt, str):
        data, width = prompt[: _MOST_BLOCKS * _TEXT_BLOCK].encode(errors="surrogatepass"), _TEXT_BLOCK
    else:
        return []  # several prompts: they have no beginning in common
    names: list[int] = []
    digest = b""
    for start in range(0, len(data) - width + 1, width):
        digest = blake2b(digest + data[start : start + width], digest_size=8).digest()
        names.append(int.from_bytes(digest, "little"))
    return names
