"""One address in front of all engines of a serving fleet.

Requests go to the engine that a serving router chooses, and answers are passed on as they come. Only known paths are
forwarded, with headers made here: nothing of a client's head reaches an engine but its identifiers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Message, Receive, Send
from starlette.types import Scope as Connection

from steelyard.live.access import Access, Scope
from steelyard.live.fleet import TRIES, EngineFleet, NobodyUp, Routed
from steelyard.live.upstream import UpstreamAnswer, UpstreamFailure

log = logging.getLogger("steelyard.gateway")

_GENERATES = ("/v1/completions", "/v1/chat/completions")
_IDENTIFIER = re.compile(r"[A-Za-z0-9._:/+=-]{1,200}")
_BODY_SECONDS = 30.0  # for a client to send a body
_EDGES = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Refused(Exception):
    """An answer that is not an engine's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Rates:
    """A bucket of requests for each token: so many a second, and as many at once."""

    per_second: float
    _left: dict[str, tuple[float, float]] = field(default_factory=dict)  # requests, and when that was

    def take(self, client: str, now: float) -> bool:
        """Whether one more is allowed."""
        left, since = self._left.get(client, (self.per_second, now))
        left = min(self.per_second, left + (now - since) * self.per_second)
        if left < 1:
            self._left[client] = left, now
            return False
        self._left[client] = left - 1, now
        return True


@dataclass(frozen=True)
class GatewayRules:
    """What the gateway lets through."""

    access: Access = field(default_factory=Access)
    most_bytes: int = 16 << 20  # of a body: a million token ids
    rates: Rates | None = None


class Gateway:
    """The application."""

    def __init__(self, fleet: EngineFleet, rules: GatewayRules) -> None:
        self._fleet = fleet
        self._rules = rules
        self._registry = CollectorRegistry()
        self._requests = Counter("steelyard_requests", "Answers.", ["status"], registry=self._registry)
        self._retries = Counter("steelyard_retries", "Requests sent to another engine.", registry=self._registry)
        self._open = Gauge("steelyard_requests_open", "Requests under way.", registry=self._registry)
        self._up = Gauge("steelyard_engines_up", "Engines that are up.", registry=self._registry)
        self._first = Histogram(
            "steelyard_first_part_seconds", "Until an answer begins.", buckets=_EDGES, registry=self._registry
        )

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        assert connection["type"] == "http"
        try:
            await self._serve(connection, receive, send)
        except Refused as refused:
            self._requests.labels(refused.status).inc()
            log.info("%s %s: %d", connection["method"], connection["path"], refused.status)
            await _answer(send, refused.status, _error(str(refused), refused.status))

    async def _serve(self, connection: Connection, receive: Receive, send: Send) -> None:
        method, path, headers = connection["method"], connection["path"], _headers(connection)
        if (method, path) == ("GET", "/health"):
            await _answer(send, 200 if any(self._fleet.up) else 503, b"")
            return
        if method == "POST" and path in _GENERATES:
            self._check(headers, "client")
            await self._generate(path, headers, receive, send)
        elif (method, path) == ("GET", "/v1/models"):
            self._check(headers, "client")
            answer = await self._ask_any(path)
            await _answer(send, answer.status, await answer.whole())
        elif (method, path) == ("GET", "/metrics"):
            self._check(headers, "operator")
            self._up.set(sum(self._fleet.up))
            await _answer(send, 200, generate_latest(self._registry), b"text/plain; version=0.0.4; charset=utf-8")
        else:
            raise Refused(
                405 if path in (*_GENERATES, "/v1/models", "/metrics", "/health") else 404, "no such resource"
            )

    def _check(self, headers: dict[str, str], scope: Scope) -> None:
        authorization = headers.get("authorization", "")
        allowed = self._rules.access.allows(authorization, scope)
        if allowed is None:
            raise Refused(401, "a bearer token is needed, in the header Authorization")
        if not allowed:
            raise Refused(403, f"this token has not the scope {scope}")
        client = authorization if self._rules.access.tokens else ""
        if self._rules.rates is not None and not self._rules.rates.take(client, time.monotonic()):
            raise Refused(429, "too many requests with this token; try again later")

    async def _generate(self, path: str, headers: dict[str, str], receive: Receive, send: Send) -> None:
        body = await self._body(headers, receive)
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            raise Refused(400, "the body is not valid JSON") from None
        if not isinstance(parsed, dict):
            raise Refused(400, "the body must be a JSON object")
        session = _identifier(headers.get("x-session-id") or parsed.get("session_id"), "x-session-id")
        identity = _identifier(headers.get("x-request-id"), "x-request-id")
        begun = time.monotonic()
        self._open.inc()
        try:
            routed, answer = await self._send(path, body, parsed, session, identity)
            try:
                await self._pass_on(routed, answer, receive, send, begun)
            finally:
                self._fleet.ended(routed, session_over=session is None)
        finally:
            self._open.dec()

    async def _send(
        self, path: str, body: bytes, parsed: dict[str, Any], session: str | None, identity: str | None
    ) -> tuple[Routed, UpstreamAnswer]:
        """Send a request to an engine, and to another if that one is gone."""
        headers = {"content-type": "application/json"}
        if identity is not None:
            headers["x-request-id"] = identity
        try:
            routed = self._fleet.send(parsed, session)
            for left in reversed(range(TRIES)):
                try:
                    return routed, await self._fleet.engines[routed.engine].ask("POST", path, headers, body)
                except UpstreamFailure as failure:
                    log.warning("engine %d: %s", routed.engine, failure)
                    if not left:
                        self._fleet.ended(routed, session_over=False)
                        break
                    self._retries.inc()
                    routed = self._fleet.elsewhere(routed)
                except asyncio.CancelledError:
                    self._fleet.ended(routed, session_over=False)
                    raise
        except NobodyUp as nobody:
            raise Refused(503, str(nobody)) from None
        raise Refused(502, "engines failed one after the other")

    async def _pass_on(
        self, routed: Routed, answer: UpstreamAnswer, receive: Receive, send: Send, begun: float
    ) -> None:
        """Pass an answer on, unless its client leaves: then the engine is told."""
        watch = asyncio.ensure_future(_gone(receive))
        passing = asyncio.ensure_future(self._pass_parts(routed, answer, send, begun))
        try:
            await asyncio.wait({watch, passing}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        finally:
            watch.cancel()
            passing.cancel()
            answer.abandon()

    async def _pass_parts(self, routed: Routed, answer: UpstreamAnswer, send: Send, begun: float) -> None:
        kind = answer.headers.get("content-type", "application/json").encode("latin-1")
        await send({"type": "http.response.start", "status": answer.status, "headers": [(b"content-type", kind)]})
        self._requests.labels(answer.status).inc()
        try:
            while (part := await answer.take()) is not None:
                if routed.first:
                    self._first.observe(time.monotonic() - begun)
                self._fleet.token(routed)
                await send({"type": "http.response.body", "body": part, "more_body": True})
        except UpstreamFailure as failure:
            log.warning("engine %d: %s", routed.engine, failure)
            self._fleet.set_up(routed.engine, False)
            ending = b"data: " + _error("the engine broke off", 502) + b"\n\n" if b"event-stream" in kind else b""
            await send({"type": "http.response.body", "body": ending, "more_body": False})
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _ask_any(self, path: str) -> UpstreamAnswer:
        for number, up in enumerate(self._fleet.up):
            if up:
                try:
                    return await self._fleet.engines[number].ask("GET", path, {})
                except UpstreamFailure:
                    self._fleet.set_up(number, False)
        raise Refused(503, "no engine is up")

    async def _body(self, headers: dict[str, str], receive: Receive) -> bytes:
        most = self._rules.most_bytes
        told = headers.get("content-length", "0")
        if not told.isascii() or not told.isdigit() or int(told[:20]) > most:
            raise Refused(413, f"a body of more than {most:,} bytes")
        found: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                more = True
                while more:
                    message: Message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "the client left")
                    part = message.get("body", b"")
                    size += len(part)
                    if size > most:
                        raise Refused(413, f"a body of more than {most:,} bytes")
                    found.append(part)
                    more = message.get("more_body", False)
        except TimeoutError:
            raise Refused(408, f"the body did not come within {_BODY_SECONDS:g} s") from None
        return b"".join(found)


def _headers(connection: Connection) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in connection["headers"]}


def _identifier(value: object, name: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or _IDENTIFIER.fullmatch(value) is None:
        raise Refused(400, f"{name}: must be up to 200 letters, digits and . _ : / + = -")
    return value


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _answer(send: Send, status: int, body: bytes, kind: bytes = b"application/json") -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _error(message: str, status: int) -> bytes:
    return json.dumps({"error": {"message": message, "type": "GatewayError", "param": None, "code": status}}).encode()
