"""HTTP servers of one process: where they listen, and how they end."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from steelyard.errors import UserError

_BACKLOG = 2048  # connections that wait to be accepted
_READ = "steelyard.read"


class StampedProtocol(HttpToolsProtocol):
    """Notes when a request's last byte was read. Its task may start much later, if many come at once."""

    def on_message_complete(self) -> None:
        state: dict[str, Any] = self.scope["state"]
        state[_READ] = time.monotonic()
        super().on_message_complete()


def read_at(scope: MutableMapping[str, Any]) -> float:
    """The second of the machine's clock at which a request was read; now with other servers."""
    found: float = scope.get("state", {}).get(_READ) or time.monotonic()
    return found


class LocalServer(uvicorn.Server):
    """One of several in a process, so that signals are not its own."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address."""
    if not host:
        raise UserError("--host: must be an address, such as 127.0.0.1")
    try:
        listener = socket.create_server((host, port), backlog=_BACKLOG)
    except (OSError, OverflowError, TypeError, UnicodeError) as problem:  # TypeError: a NUL in the name
        raise UserError(f"--host {host} --port {port}: cannot listen there: {problem}") from None
    # Connections inherit it. asyncio sets it only for sockets that name their protocol, and without it the body of an
    # answer waits up to 40 ms for the acknowledgement of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


async def serve_at(server: LocalServer, listener: socket.socket) -> None:
    """Serve at a socket. Cancelled, it drops everything at once."""
    try:
        await server.serve(sockets=[listener])
    finally:
        if server.started:
            for each in server.servers:
                each.close()
        listener.close()
        await asyncio.sleep(0)  # for connections that were being accepted
        for connection in list(server.server_state.connections):
            connection.transport.abort()


def stop_on_signals(servers: Sequence[LocalServer]) -> None:
    """End all servers at an interrupt or a request to end: the exit code is that of success."""

    def stop() -> None:
        for server in servers:
            server.should_exit = server.force_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
