"""One address in front of all engines of a serving fleet.

Requests go to the engine that a serving router chooses, and answers are passed on as they come. Only known paths are
forwarded, with headers made here: nothing of a client's head reaches an engine but its identifiers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import resource
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import httptools
import orjson
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from steelyard.live.access import Access, Scope
from steelyard.live.desk import LiveTrajectory, TurnDesk, TurnRefused
from steelyard.live.fleet import TRIES, EngineFleet, NobodyUp, Routed
from steelyard.live.journal import StoredTurn
from steelyard.live.observe import TEXT, GatewayMetrics
from steelyard.live.tracing import Tracing, tracing_from_environment
from steelyard.live.trajectories import (
    IDENTIFIER,
    TRAJECTORIES,
    ended_well,
    stream_turn,
    trajectory_call,
    trajectory_target,
    turn_request,
)
from steelyard.live.turns import CHAT, TurnRequest
from steelyard.live.upstream import Upstream, UpstreamAnswer, UpstreamFailure

log = logging.getLogger("steelyard.gateway")

Headers = dict[str, str]
_METHODS = {
    "/health": "GET",
    "/openapi.json": "GET",
    "/metrics": "GET",
    "/v1/models": "GET",
    "/v1/completions": "POST",
    "/v1/chat/completions": "POST",
}
_IDENTIFIER = re.compile(IDENTIFIER)
_DEEPEST = 254  # levels of JSON, which is what orjson writes
_JSON = b"application/json"
_MOST_HEAD = 64 << 10  # bytes of a request's head; chosen
_OWN_FILES = 64  # that a process has open beside its connections; chosen


class Refused(Exception):
    """An answer that is not an engine's."""

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


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
class ClientPatience:
    """What a client may take of the gateway's connections and time. All are chosen."""

    connections: int = 4096  # at once; also bounded by the files that the process may open
    head_seconds: float = 10.0  # for a whole head to come, and for the rest of a body that nobody wants
    body_seconds: float = 30.0
    stall_seconds: float = 30.0  # without reading any of what was written to it


@dataclass(frozen=True)
class GatewayRules:
    """What the gateway lets through."""

    access: Access = field(default_factory=Access)
    most_bytes: int = 16 << 20  # of a body: a million token ids
    rates: Rates | None = None
    patience: ClientPatience = field(default_factory=ClientPatience)


class Gateway:
    """The application: a serving fleet, trajectories of post-training, or both."""

    def __init__(
        self,
        fleet: EngineFleet | None,
        rules: GatewayRules,
        desk: TurnDesk | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self.rules = rules
        self.metrics = GatewayMetrics()
        self._fleet_or_none = fleet
        self._desk = desk
        self._tracing = tracing_from_environment() if tracing is None else tracing
        self._openapi = b""

    @property
    def _fleet(self) -> EngineFleet:
        """Engines for requests of no trajectory."""
        if self._fleet_or_none is None:
            raise Refused(400, "this gateway serves turns of trajectories only: give the header X-Session-ID")
        return self._fleet_or_none

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        assert connection["type"] == "http"
        try:
            await self._serve(connection, receive, send)
        except (Refused, TurnRefused) as refused:
            self.metrics.requests.labels(refused.status).inc()
            path = connection["raw_path"][:200].decode("ascii", "replace")  # as it was sent: without control characters
            log.info("%s %s: %d", connection["method"], path, refused.status)
            headers = refused.headers if isinstance(refused, Refused) else ()
            await _answer(send, refused.status, _error(str(refused), refused.status), _JSON, headers)

    async def _serve(self, connection: Connection, receive: Receive, send: Send) -> None:
        method, path = connection["method"], connection["raw_path"].decode("ascii")
        if self._desk is not None and path.startswith(TRAJECTORIES):
            await self._trajectory(self._desk, connection, receive, send)
            return
        if path not in _METHODS:
            raise Refused(404, "no such resource")
        _check_method(method, _METHODS[path])
        headers = _headers(connection)
        if method == "POST":
            self._check(headers, "client")
            await self._generate(path, headers, receive, send)
        elif path == "/health":
            await _answer(send, 200 if self._is_well() else 503, b"")
        elif path == "/openapi.json":
            await _answer(send, 200, self._description())
        elif path == "/metrics":
            self._check(headers, "operator")
            await _answer(send, 200, self.metrics.text(self._fleet_or_none, self._desk), TEXT)
        else:
            self._check(headers, "client")
            status, answer = await self._ask_any(path)
            await _answer(send, status, answer)

    def _is_well(self) -> bool:
        """Whether requests can be answered: of no trajectory if it has a fleet, else of trajectories."""
        return any(self._fleet.up) if self._desk is None else bool(self._desk.engines)

    def _description(self) -> bytes:
        if not self._openapi:
            from steelyard.live.openapi import described

            document = described(
                fleet=self._fleet_or_none is not None,
                trajectories=self._desk is not None,
                tokens=bool(self.rules.access.tokens),
            )
            self._openapi = orjson.dumps(document)
        return self._openapi

    def _check(self, headers: Headers, scope: Scope) -> None:
        authorization = headers.get("authorization", "")
        allowed = self.rules.access.allows(authorization, scope)
        if allowed is None:
            challenge = (b"www-authenticate", b"Bearer")
            raise Refused(401, "a bearer token is needed, in the header Authorization", challenge)
        if not allowed:
            raise Refused(403, f"this token has not the scope {scope}")
        client = authorization.partition(" ")[2].strip() if self.rules.access.tokens else ""
        if self.rules.rates is not None and not self.rules.rates.take(client, time.monotonic()):
            raise Refused(429, "too many requests with this token; try again later", (b"retry-after", b"1"))

    async def _generate(self, path: str, headers: Headers, receive: Receive, send: Send) -> None:
        body = await self._body(headers, receive)
        parsed = _parsed(body, "messages" if path == CHAT else "prompt")
        identity = _identifier(headers.get("x-request-id"), "x-request-id")
        session = _identifier(_either(headers, "x-session-id", parsed, "session_id"), "x-session-id")
        desk = self._desk
        if desk is not None and session is not None:
            group = _identifier(_either(headers, "x-group-id", parsed, "group_id"), "x-group-id")
            turn = turn_request(path, parsed, session, group, headers)
            with self._traced("turn", headers, session), self._under_way():
                await self._turn(desk, turn, receive, send)
            return
        asking = {"content-type": "application/json"}
        if identity is not None:
            asking["x-request-id"] = identity
        forward = _Forward(self._fleet, path, asking, body, session)
        with self._traced("request", headers), self._under_way():
            await _while_there(receive, self._forward(forward, parsed, send))

    def _traced(self, name: str, headers: Headers, trajectory: str = "") -> AbstractContextManager[object]:
        return nullcontext() if self._tracing is None else self._tracing.serving(name, headers, trajectory)

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        self.metrics.open.inc()
        try:
            yield
        finally:
            self.metrics.open.dec()

    # -- turns of trajectories ----------------------------------------------------------------------------------

    async def _turn(self, desk: TurnDesk, request: TurnRequest, receive: Receive, send: Send) -> None:
        """A turn of a trajectory, which the core places."""
        begun, outcome = time.monotonic(), "refused"
        try:
            found = desk.begin(request)
            task = None if isinstance(found, StoredTurn) else found.task
            there = await _while_there(receive, self._answer_turn(desk, request, found, send, begun))
            if not there:
                outcome = "left"
            elif task is None or ended_well(task):  # else its stream broke off
                outcome = "repeated" if task is None else "answered"
        finally:
            self.metrics.turns.labels(outcome).inc()
        if there:
            self.metrics.requests.labels(200).inc()
        if task is not None and outcome == "answered":
            self._count(task.result(), time.monotonic() - begun)

    async def _answer_turn(
        self, desk: TurnDesk, request: TurnRequest, found: LiveTrajectory | StoredTurn, send: Send, begun: float
    ) -> None:
        if request.streams:
            await stream_turn(found, send, lambda: self.metrics.first_token.observe(time.monotonic() - begun))
            return
        stored = found if isinstance(found, StoredTurn) else await desk.over(found)
        await _answer(send, 200, orjson.dumps(stored.answer))

    def _count(self, stored: StoredTurn, seconds: float) -> None:
        self.metrics.turn.observe(seconds)
        self.metrics.tokens.labels("prompt").inc(stored.prompt_tokens)
        self.metrics.tokens.labels("generated").inc(stored.generated)

    async def _trajectory(self, desk: TurnDesk, connection: Connection, receive: Receive, send: Send) -> None:
        """What clients tell of trajectories, and what trainers read of them."""
        target = trajectory_target(connection["raw_path"].decode("ascii"))
        name = _identifier(target.name, "trajectory") or ""
        _check_method(connection["method"], target.method)
        headers = _headers(connection)
        self._check(headers, "client" if target.what else "engine")
        body = await self._body(headers, receive) if target.what else b""
        answer = orjson.dumps(trajectory_call(desk, name, target.what, body))
        self.metrics.requests.labels(200).inc()
        await _answer(send, 200, answer)

    # -- requests of no trajectory ------------------------------------------------------------------------------

    async def _forward(self, forward: _Forward, parsed: dict[str, Any], send: Send) -> None:
        """Send a request to an engine, and to another if that one is gone. Pass its answer on."""
        try:
            routed = forward.fleet.send(parsed, forward.session)
        except NobodyUp as nobody:
            raise Refused(503, str(nobody)) from None
        for left in reversed(range(TRIES)):
            with self._engine(routed.engine, forward.headers):
                answer = await _ask(forward, routed)
                if answer is not None:
                    await self._pass_on(forward, routed, answer, send)
                    return
            routed = self._elsewhere(forward.fleet, routed, left)

    def _engine(self, number: int, headers: Headers) -> AbstractContextManager[None]:
        return nullcontext() if self._tracing is None else self._tracing.engine(number, headers)

    def _elsewhere(self, fleet: EngineFleet, routed: Routed, left: int) -> Routed:
        """Another engine, as long as there are tries left."""
        if not left:
            fleet.ended(routed, session_over=False)
            raise Refused(502, "engines failed one after the other")
        self.metrics.retries.inc()
        try:
            return fleet.elsewhere(routed)
        except NobodyUp as nobody:
            raise Refused(503, str(nobody)) from None

    async def _pass_on(self, forward: _Forward, routed: Routed, answer: UpstreamAnswer, send: Send) -> None:
        fleet, kind = forward.fleet, answer.headers.get("content-type", "application/json").encode("latin-1")
        streams = b"event-stream" in kind
        try:
            if answer.status >= 500:  # what it says of itself is not for clients
                status = 503 if answer.status == 503 else 502
                raise Refused(status, f"the engine answered with status {answer.status}")
            await send({"type": "http.response.start", "status": answer.status, "headers": [(b"content-type", kind)]})
            self.metrics.requests.labels(answer.status).inc()
            while (part := await answer.take()) is not None:
                if routed.first:
                    if streams:
                        self.metrics.first_token.observe(time.monotonic() - forward.begun)
                    fleet.token(routed)
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except UpstreamFailure as failure:
            log.warning("engine %d: %s", routed.engine, failure)
            fleet.set_up(routed.engine, False)
            ending = b"data: " + _error("the engine broke off", 502) + b"\n\n" if streams else b""
            await send({"type": "http.response.body", "body": ending, "more_body": False})
        finally:
            answer.abandon()  # unless it is over: then its client has left
            fleet.ended(routed, session_over=forward.session is None)

    async def _ask_any(self, path: str) -> tuple[int, bytes]:
        """What any engine that is up answers."""
        for upstream in self._upstreams():
            try:
                answer = await upstream.ask("GET", path, {})
                return answer.status, await answer.whole()
            except UpstreamFailure as failure:
                log.warning("%s", failure)
        raise Refused(503, "no engine is up")

    def _upstreams(self) -> list[Upstream]:
        fleet, desk = self._fleet_or_none, self._desk
        found = [] if fleet is None else [each for each, up in zip(fleet.engines, fleet.up, strict=True) if up]
        return found + ([] if desk is None else [entry.upstream for entry in desk.engines.values()])

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        most = self.rules.most_bytes
        told = headers.get("content-length", "0")
        if not told.isascii() or not told.isdigit() or int(told[:20]) > most:
            raise Refused(413, f"a body of more than {most:,} bytes")
        found: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.rules.patience.body_seconds):
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
            raise Refused(408, f"the body did not come within {self.rules.patience.body_seconds:g} s") from None
        return b"".join(found)


@dataclass
class _Forward:
    """A request for any engine of a fleet."""

    fleet: EngineFleet
    path: str
    headers: Headers
    body: bytes
    session: str | None
    begun: float = field(default_factory=time.monotonic)


async def _ask(forward: _Forward, routed: Routed) -> UpstreamAnswer | None:
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


async def _while_there(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Do something for a client, unless it leaves first. Returns whether it was done."""
    watch, working = asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(work)
    try:
        await asyncio.wait({watch, working}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        watch.cancel()
        working.cancel()
        working.add_done_callback(_look)  # nobody else does, if its client has left


def _look(task: asyncio.Future[None]) -> None:
    if not task.cancelled():
        task.exception()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _headers(connection: Connection) -> Headers:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in connection["headers"]}


def _check_method(method: str, wanted: str) -> None:
    if method != wanted:
        raise Refused(405, f"use {wanted}", (b"allow", wanted.encode()))


def _parsed(body: bytes, needed: str) -> dict[str, Any]:
    """The body of a request for tokens. Engines check it; here is checked what is used here."""
    try:
        parsed = orjson.loads(body)
        if body.count(b"[") + body.count(b"{") > _DEEPEST:
            orjson.dumps(parsed)  # fails at more levels
    except ValueError:
        raise Refused(400, "the body is not valid JSON") from None
    except TypeError:
        raise Refused(400, f"the body has more than {_DEEPEST} levels") from None
    if not isinstance(parsed, dict):
        raise Refused(400, "the body must be a JSON object")
    if parsed.get(needed) is None:
        raise Refused(400, f"{needed}: is missing")
    messages = parsed.get("messages", [])
    if not isinstance(messages, list) or not all(_is_message(each) for each in messages):
        raise Refused(400, "messages: must be a list of objects with a role")
    if "kv_transfer_params" in parsed:  # would have an engine fetch from wherever a client says
        raise Refused(400, "kv_transfer_params: not for clients")
    return parsed


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def _either(headers: Headers, name: str, body: dict[str, Any], key: str) -> object:
    return headers[name] if name in headers else body.get(key)


def _identifier(value: object, name: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or _IDENTIFIER.fullmatch(value) is None:
        raise Refused(400, f"{name}: must be up to 200 letters, digits and . _ : / + = @ -")
    return value


async def _answer(
    send: Send, status: int, body: bytes, kind: bytes = _JSON, more: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _error(message: str, status: int) -> bytes:
    return json.dumps({"error": {"message": message, "type": "GatewayError", "param": None, "code": status}}).encode()


# -- connections ------------------------------------------------------------------------------------------------


class _Room:
    """Connections of a server that wait for a head, the oldest first. If there are too many, the oldest is closed."""

    def __init__(self, rules: GatewayRules) -> None:
        self.rules = rules
        self.idle: dict[ClientConnection, None] = {}
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = min(rules.patience.connections, (files - _OWN_FILES) // 2)  # each may need one to an engine

    def make(self) -> bool:
        """Close the oldest idle connection. Returns whether there was one."""
        for oldest in self.idle:
            oldest.close_idle()
            return True
        return False


class ClientConnection(HttpToolsProtocol):
    """A client's connection, as uvicorn has it, and bounded: in the time that a head takes, in what is read and not
    wanted, and in what was written and is not read."""

    def __init__(self, room: _Room, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._room, self._patience = room, room.rules.patience
        self._in_head = True
        self._received = 0  # bytes of this request
        self._late: asyncio.TimerHandle | None = None  # while a head is awaited, or the rest of an unwanted body
        self._stalled: asyncio.TimerHandle | None = None  # while nothing more can be written

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that a client that does not read is noticed at once
        if len(self.connections) > self._room.most and not self._room.make():
            self._refuse(503, "too many connections")
            return
        self._room.idle[self] = None
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.idle.pop(self, None)
        _cancel(self._late)
        _cancel(self._stalled)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._received += len(data)
        if self._late is None and self._in_head:
            self._expect()
        super().data_received(data)
        if self._in_head and self._received > _MOST_HEAD:
            self._refuse(431, "the head is too long")
        elif self._received > _MOST_HEAD + 2 * self._room.rules.most_bytes:  # chunks and trailers without end
            self.transport.abort()

    def on_headers_complete(self) -> None:
        if not self.url.startswith(b"/") or self.parser.get_http_version() not in ("1.0", "1.1"):
            raise httptools.HttpParserInvalidURLError("not a path")  # we are nobody's proxy
        self._in_head = False
        self._expected()
        self._room.idle.pop(self, None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._received = True, 0
        super().on_message_complete()
        if self.cycle.response_complete:  # it was answered before its body had come
            self._expected()
            keep, end = self.timeout_keep_alive, self.timeout_keep_alive_handler
            self.timeout_keep_alive_task = self.loop.call_later(keep, end)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or not self.cycle.response_complete:
            return  # or the next request is here already
        self._room.idle[self] = None
        if not self._in_head:
            self._expect()

    def timeout_keep_alive_handler(self) -> None:
        self.close_idle()

    def close_idle(self) -> None:
        """Close it, whether or not its client reads what was written."""
        self._room.idle.pop(self, None)
        self.transport.close()
        self.loop.call_later(self._patience.stall_seconds, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._patience.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stalled)

    def _expect(self) -> None:
        """Something has to come within the time that a head may take."""
        self._late = self.loop.call_later(self._patience.head_seconds, self._is_late)

    def _expected(self) -> None:
        _cancel(self._late)
        self._late = None

    def _is_late(self) -> None:
        self._late = None
        if self.cycle is None or self.cycle.response_complete:
            self._refuse(408, "the request did not come in time")
        else:  # half a head has come while the request before it is answered
            self._expect()

    def _refuse(self, status: int, why: str) -> None:
        """Close it, with an answer if half a head has come."""
        if self._in_head and (self._received or status == 503):
            body = _error(why, status)
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        self.close_idle()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def server_config(app: ASGIApp, rules: GatewayRules, certificate: tuple[Path, Path] | None = None) -> uvicorn.Config:
    """How a gateway is served, or an application around one; ``certificate`` are the files of a certificate and its
    key."""
    room = _Room(rules)
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        loop="asyncio",
        http=cast(type[ClientConnection], partial(ClientConnection, room)),
        ws="none",
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        ssl_certfile=None if certificate is None else str(certificate[0]),
        ssl_keyfile=None if certificate is None else str(certificate[1]),
    )
