"""Paths that lead to one engine, beside those of OpenAI's interface: tokens in and out, SGLang's own, tokenizers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from steelyard.live.access import Access
from steelyard.live.adapters.calls import body_of, check, headers_of, json_of
from steelyard.live.fleet import TRIES, EngineFleet, NobodyUp, Routed
from steelyard.live.requests import Refused
from steelyard.live.upstream import UpstreamAnswer, UpstreamFailure

log = logging.getLogger("steelyard.adapters")

_JSON = {"content-type": "application/json"}


class Forward:
    """Sends each request to the engine that the fleet chooses, and passes the answer on as it comes."""

    def __init__(self, fleet: EngineFleet, access: Access, paths: Mapping[str, str], header: str) -> None:
        """``paths`` says under which key of the body a prompt is. ``header`` names the session."""
        self._fleet = fleet
        self._access = access
        self._paths = paths
        self._header = header

    def serves(self, method: str, path: str) -> bool:
        return method == "POST" and path in self._paths

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        check(self._access, connection, "client")
        path: str = connection["path"]
        session = headers_of(connection).get(self._header)
        body = await body_of(receive)
        parsed = json_of(body)
        prompt = {"messages" if self._paths[path] == "messages" else "prompt": parsed.get(self._paths[path])}
        routed, answer = await self._send(path, body, prompt, session)
        try:
            await self._pass_on(routed, answer, receive, send)
        finally:
            self._fleet.ended(routed, session_over=session is None)

    async def _send(
        self, path: str, body: bytes, prompt: dict[str, Any], session: str | None
    ) -> tuple[Routed, UpstreamAnswer]:
        """Send a request to an engine, and to another if that one is gone before it answers."""
        try:
            routed = self._fleet.send(prompt, session)
            for left in reversed(range(TRIES)):
                try:
                    return routed, await self._fleet.engines[routed.engine].ask("POST", path, _JSON, body)
                except UpstreamFailure as failure:
                    log.warning("engine %d: %s", routed.engine, failure)
                    if not left:
                        self._fleet.ended(routed, session_over=session is None)
                        break
                    routed = self._fleet.elsewhere(routed)
                except asyncio.CancelledError:
                    self._fleet.ended(routed, session_over=session is None)
                    raise
        except NobodyUp as nobody:
            raise Refused(503, str(nobody)) from None
        raise Refused(502, "engines failed one after the other")

    async def _pass_on(self, routed: Routed, answer: UpstreamAnswer, receive: Receive, send: Send) -> None:
        """Pass an answer on, unless its client leaves: then the engine is told."""
        watch = asyncio.ensure_future(_gone(receive))
        passing = asyncio.ensure_future(self._pass_parts(routed, answer, send))
        try:
            await asyncio.wait({watch, passing}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            watch.cancel()
            passing.cancel()
            answer.abandon()

    async def _pass_parts(self, routed: Routed, answer: UpstreamAnswer, send: Send) -> None:
        kind = answer.headers.get("content-type", "application/json").encode("latin-1")
        await send({"type": "http.response.start", "status": answer.status, "headers": [(b"content-type", kind)]})
        try:
            while (part := await answer.take()) is not None:
                self._fleet.token(routed)
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except UpstreamFailure as failure:  # the answer stays incomplete, which closes the client's connection
            log.warning("engine %d: %s", routed.engine, failure)
            self._fleet.set_up(routed.engine, False)
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
