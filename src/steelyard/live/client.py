"""Calls to the gateway that are repeated until it answers: it may be starting again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from steelyard.live.upstream import Upstream, UpstreamFailure

_RETRY_SECONDS = 0.1  # chosen


class GatewayLink:
    """A run's gateway, at present here and after a restart perhaps elsewhere. ``find`` says where it is."""

    def __init__(self, find: Callable[[], Upstream]) -> None:
        self._find = find
        self.upstream = find()

    def look_again(self) -> None:
        """It did not answer: it may be at another address by now."""
        found = self._find()
        if str(found) != str(self.upstream):
            self.upstream.close()
            self.upstream = found


class TrajectoryOver(Exception):
    """The gateway has given a trajectory up, or has ended it."""


async def ask(
    gateway: GatewayLink, path: str, headers: Mapping[str, str], body: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The gateway's answer: POST with a body, GET without one."""
    data = b"" if body is None else orjson.dumps(body)
    method, headers = ("GET", {}) if body is None else ("POST", {**headers, "content-type": "application/json"})
    while True:
        try:
            answer = await gateway.upstream.ask(method, path, headers, data)
            content = await answer.whole()
        except UpstreamFailure:
            gateway.look_again()
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        if answer.status == 200:
            found: dict[str, Any] = orjson.loads(content)
            return found
        if answer.status in (404, 410):
            raise TrajectoryOver
        if answer.status < 500:
            raise RuntimeError(f"{path}: {answer.status} {content[:200]!r}")
        await asyncio.sleep(_RETRY_SECONDS)
