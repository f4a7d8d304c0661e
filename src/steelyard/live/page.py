"""The controller's page for operators: its metrics, and whether it is well."""

from __future__ import annotations

import socket

import uvicorn
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as Connection

from steelyard.emulate.servers import LocalServer, serve_at
from steelyard.live.access import Access, guarded
from steelyard.live.control import ControlServer
from steelyard.live.keeper import Keeper
from steelyard.live.observe import TEXT, ControllerMetrics


class ControllerPage:
    """`/metrics` for Prometheus, with a token of an operator if the run has tokens, and `/health`. The server must be
    open."""

    def __init__(self, server: ControlServer, keeper: Keeper, access: Access) -> None:
        self._metrics = ControllerMetrics(server, keeper)
        server.watches.append(self._metrics)
        self._guarded: ASGIApp = guarded(self._answer, access, "operator")

    async def serve(self, listener: socket.socket) -> None:
        """Serve at a socket until cancelled."""
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            log_level="warning",
            access_log=False,
            loop="asyncio",
            ws="none",
            lifespan="off",
            server_header=False,
        )
        await serve_at(LocalServer(config), listener)

    async def _app(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["path"] == "/health":
            await _send(send, 200, b"")
        else:
            await self._guarded(connection, receive, send)

    async def _answer(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["path"] == "/metrics" and connection["method"] == "GET":
            await _send(send, 200, self._metrics.text())
        else:
            await _send(send, 404, b"")


async def _send(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", TEXT), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
