"""Serves the small engine until it is interrupted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn

from steelyard.emulate.servers import LocalServer, listen, serve_at, stop_on_signals
from steelyard.live.access import Access, guarded
from steelyard.live.tiny.app import tiny_app
from steelyard.live.tiny.engine import TinyEngine


async def serve_tiny(engine: TinyEngine, host: str, port: int, ready: Callable[[int], None]) -> None:
    """Serve at an address; port 0 chooses a free one."""
    listener = listen(host, port)
    ready(listener.getsockname()[1])
    await serve_tiny_at(engine, listener)


async def serve_tiny_at(engine: TinyEngine, listener: socket.socket, access: Access | None = None) -> None:
    """Serve at a socket; with tokens, only those who have one. A failure of the engine ends it. Cancelled, it drops all
    connections at once, as a process that is killed does."""
    config = uvicorn.Config(
        guarded(tiny_app(engine), access or Access(), "engine"),
        log_level="warning",
        access_log=False,
        loop="asyncio",
        lifespan="off",
        timeout_keep_alive=75,
    )
    server = LocalServer(config)
    stop_on_signals([server])
    running = asyncio.ensure_future(engine.run())
    serving = asyncio.ensure_future(serve_at(server, listener))
    try:
        await asyncio.wait({running, serving}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        running.cancel()
        server.should_exit = server.force_exit = True
        await serving
