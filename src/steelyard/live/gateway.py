"""One address in front of all engines of a serving fleet.

Requests go to the engine that a serving router chooses, and answers are passed on as they come. Only known paths are
forwarded, with headers made here: nothing of a client's head reaches an engine but its identifiers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import orjson
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from steelyard.live.access import Scope
from steelyard.live.access_log import AccessLog
from steelyard.live.desk import TurnDesk
from steelyard.live.fleet import EngineFleet
from steelyard.live.forwarding import FleetRequest, Forwarding
from steelyard.live.journal import StoredTurn
from steelyard.live.live_trajectory import LiveTrajectory, TurnRefused
from steelyard.live.observe import TEXT, GatewayMetrics
from steelyard.live.requests import (
    JSON,
    Headers,
    Refused,
    check_method,
    either,
    error_body,
    headers_of,
    identifier,
    parsed_body,
    send_answer,
    while_there,
    whole_body,
)
from steelyard.live.rules import GatewayRules
from steelyard.live.tracing import Tracing, tracing_from_environment
from steelyard.live.trajectories import (
    TRAJECTORIES,
    ended_well,
    send_at_once,
    stream_turn,
    trajectory_call,
    trajectory_target,
    turn_request,
)
from steelyard.live.turns import CHAT, TurnRequest
from steelyard.live.upstream import Upstream, UpstreamFailure

log = logging.getLogger("steelyard.gateway")

_METHODS = {
    "/health": "GET",
    "/openapi.json": "GET",
    "/metrics": "GET",
    "/v1/models": "GET",
    "/v1/completions": "POST",
    "/v1/chat/completions": "POST",
}


class Gateway:
    """The application: a serving fleet, trajectories of post-training, or both."""

    def __init__(
        self,
        fleet: EngineFleet | None,
        rules: GatewayRules,
        desk: TurnDesk | None = None,
        tracing: Tracing | None = None,
        access: AccessLog | None = None,
    ) -> None:
        self.rules = rules
        self.metrics = GatewayMetrics()
        self._fleet_or_none = fleet
        self._desk = desk
        self._tracing = tracing_from_environment() if tracing is None else tracing
        self._forwarding = Forwarding(self.metrics, self._tracing, access)
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
            await send_answer(send, refused.status, error_body(str(refused), refused.status), JSON, headers)

    async def _serve(self, connection: Connection, receive: Receive, send: Send) -> None:
        method, path = connection["method"], connection["raw_path"].decode("ascii")
        if self._desk is not None and path.startswith(TRAJECTORIES):
            await self._trajectory(self._desk, connection, receive, send)
            return
        if path not in _METHODS:
            raise Refused(404, "no such resource")
        check_method(method, _METHODS[path])
        headers = headers_of(connection)
        if method == "POST":
            self._check(headers, "client")
            await self._generate(path, headers, receive, send)
        elif path == "/health":
            await send_answer(send, 200 if self._is_well() else 503, b"")
        elif path == "/openapi.json":
            await send_answer(send, 200, self._description())
        elif path == "/metrics":
            self._check(headers, "operator")
            await send_answer(send, 200, self.metrics.text(self._fleet_or_none, self._desk), TEXT)
        else:
            self._check(headers, "client")
            status, answer = await self._ask_any(path)
            await send_answer(send, status, answer)

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
        body = await whole_body(self.rules, headers, receive)
        parsed = parsed_body(body, "messages" if path == CHAT else "prompt")
        identity = identifier(headers.get("x-request-id"), "x-request-id")
        session = identifier(either(headers, "x-session-id", parsed, "session_id"), "x-session-id")
        desk = self._desk
        if desk is not None and session is not None:
            group = identifier(either(headers, "x-group-id", parsed, "group_id"), "x-group-id")
            turn = turn_request(path, parsed, session, group, headers)
            with self._traced("turn", headers, session), self._under_way():
                await self._turn(desk, turn, receive, send)
            return
        asking = {"content-type": "application/json"}
        if identity is not None:
            asking["x-request-id"] = identity
        forward = FleetRequest(self._fleet, path, asking, body, session)
        with self._traced("request", headers), self._under_way():
            await while_there(receive, self._forwarding.run(forward, parsed, send))

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
            there = await while_there(receive, self._answer_turn(desk, request, (found, task), send, begun))
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
        self,
        desk: TurnDesk,
        request: TurnRequest,
        turn: tuple[LiveTrajectory | StoredTurn, asyncio.Task[StoredTurn] | None],
        send: Send,
        begun: float,
    ) -> None:
        """Send a turn that was found, and the task that runs it unless it is over."""
        found, task = turn
        if isinstance(found, StoredTurn):
            await (send_at_once(send, found) if request.streams else _send_whole(send, found))
            return
        assert task is not None, "a turn that was begun runs"
        if request.streams:
            await stream_turn(found, task, send, lambda: self.metrics.first_token.observe(time.monotonic() - begun))
        else:
            await _send_whole(send, await desk.over(found, task))

    def _count(self, stored: StoredTurn, seconds: float) -> None:
        self.metrics.turn.observe(seconds)
        self.metrics.tokens.labels("prompt").inc(stored.prompt_tokens)
        self.metrics.tokens.labels("generated").inc(stored.generated)

    async def _trajectory(self, desk: TurnDesk, connection: Connection, receive: Receive, send: Send) -> None:
        """What clients tell of trajectories, and what trainers read of them."""
        target = trajectory_target(connection["raw_path"].decode("ascii"))
        name = identifier(target.name, "trajectory") or ""
        check_method(connection["method"], target.method)
        headers = headers_of(connection)
        self._check(headers, "client" if target.what else "engine")
        body = await whole_body(self.rules, headers, receive) if target.what else b""
        answer = orjson.dumps(trajectory_call(desk, name, target.what, body))
        self.metrics.requests.labels(200).inc()
        await send_answer(send, 200, answer)

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


async def _send_whole(send: Send, stored: StoredTurn) -> None:
    await send_answer(send, 200, orjson.dumps(stored.answer))
