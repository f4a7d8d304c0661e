"""Requests of no trajectory: to the engine that a serving router chooses, and its answer back as it comes."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Send

from steelyard.live.access_log import AccessLog, LoggedRequest
from steelyard.live.fleet import TRIES, EngineFleet, NobodyUp, Routed
from steelyard.live.observe import GatewayMetrics
from steelyard.live.requests import Headers, Refused, error_body
from steelyard.live.tracing import Tracing
from steelyard.live.upstream import UpstreamAnswer, UpstreamFailure

log = logging.getLogger("steelyard.gateway")


@dataclass
class FleetRequest:
    """A request for any engine of a fleet."""

    fleet: EngineFleet
    path: str
    headers: Headers
    body: bytes
    session: str | None
    begun: float = field(default_factory=time.monotonic)


class Forwarding:
    """Sends requests to engines of a fleet, and counts what became of them."""

    def __init__(self, metrics: GatewayMetrics, tracing: Tracing | None, access: AccessLog | None = None) -> None:
        self._metrics, self._tracing, self._access = metrics, tracing, access

    async def run(self, forward: FleetRequest, parsed: dict[str, Any], send: Send) -> None:
        """Send a request to an engine, and to another if that one is gone. Pass its answer on."""
        logged = None if self._access is None else self._access.begin(parsed, forward.session)
        try:
            routed = forward.fleet.send(parsed, forward.session)
        except NobodyUp as nobody:
            raise Refused(503, str(nobody)) from None
        for left in reversed(range(TRIES)):
            with self._engine(routed.engine, forward.headers):
                answer = await _ask(forward, routed)
                if answer is not None:
                    await self._pass_on(forward, routed, answer, send, logged)
                    return
            routed = self._elsewhere(forward.fleet, routed, left)

    def _engine(self, number: int, headers: Headers) -> AbstractContextManager[None]:
        return nullcontext() if self._tracing is None else self._tracing.engine(number, headers)

    def _elsewhere(self, fleet: EngineFleet, routed: Routed, left: int) -> Routed:
        """Another engine, as long as there are tries left."""
        if not left:
            fleet.ended(routed, session_over=False)
            raise Refused(502, "engines failed one after the other")
        self._metrics.retries.inc()
        try:
            return fleet.elsewhere(routed)
        except NobodyUp as nobody:
            raise Refused(503, str(nobody)) from None

    async def _pass_on(
        self,
        forward: FleetRequest,
        routed: Routed,
        answer: UpstreamAnswer,
        send: Send,
        logged: LoggedRequest | None = None,
    ) -> None:
        fleet, kind = forward.fleet, answer.headers.get("content-type", "application/json").encode("latin-1")
        streams = b"event-stream" in kind
        try:
            if answer.status >= 500:  # what it says of itself is not for clients
                status = 503 if answer.status == 503 else 502
                raise Refused(status, f"the engine answered with status {answer.status}")
            await send({"type": "http.response.start", "status": answer.status, "headers": [(b"content-type", kind)]})
            self._metrics.requests.labels(answer.status).inc()
            while (part := await answer.take()) is not None:
                if routed.first:
                    if streams:
                        self._metrics.first_token.observe(time.monotonic() - forward.begun)
                    fleet.token(routed)
                if logged is not None:
                    logged.saw(part, streams)
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except UpstreamFailure as failure:
            log.warning("engine %d: %s", routed.engine, failure)
            fleet.set_up(routed.engine, False)
            ending = b"data: " + error_body("the engine broke off", 502) + b"\n\n" if streams else b""
            await send({"type": "http.response.body", "body": ending, "more_body": False})
        finally:
            if logged is not None and answer.status == 200:
                logged.ended(streams)
            answer.abandon()  # unless it is over: then its client has left
            fleet.ended(routed, session_over=forward.session is None)


async def _ask(forward: FleetRequest, routed: Routed) -> UpstreamAnswer | None:
    """An engine's answer; None if the engine is gone."""
    fleet = forward.fleet
    try:
        return await fleet.engines[routed.engine].ask("POST", forward.path, forward.headers, forward.body)
    except UpstreamFailure as failure:
        log.warning("engine %d: %s", routed.engine, failure)
        return None
    except asyncio.CancelledError:
        fleet.ended(routed, session_over=False)
        raise
