"""HTTP servers of one process: where they listen, and how they end."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn

from steelyard.errors import UserError

_BACKLOG = 2048  # connections that wait to be accepted


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
        return socket.create_server((host, port), backlog=_BACKLOG)
    except (OSError, OverflowError, TypeError, UnicodeError) as problem:  # TypeError: a NUL in the name
        raise UserError(f"--host {host} --port {port}: cannot listen there: {problem}") from None


def stop_on_signals(servers: Sequence[LocalServer]) -> None:
    """End all servers at an interrupt or a request to end: the exit code is that of success."""

    def stop() -> None:
        for server in servers:
            server.should_exit = server.force_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)
