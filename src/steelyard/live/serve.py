"""Runs a gateway until it is interrupted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from steelyard.errors import UserError
from steelyard.live.fleet import EngineFleet
from steelyard.live.gateway import Gateway, GatewayRules

_BACKLOG = 2048  # connections that wait to be accepted
_LOCAL = ("127.0.0.1", "::1", "localhost")


async def serve_gateway(
    fleet: EngineFleet,
    rules: GatewayRules,
    host: str,
    port: int,
    ready: Callable[[int], None],
    certificate: tuple[Path, Path] | None = None,
) -> None:
    """Serve at an address; ``certificate`` are the files of a certificate and its key."""
    if host not in _LOCAL and not rules.access.tokens:
        raise UserError(f"--host {host}: other machines can reach it, so it needs --tokens FILE")
    try:
        listener = socket.create_server((host, port), backlog=_BACKLOG)
    except (OSError, OverflowError) as problem:
        raise UserError(f"--host {host} --port {port}: cannot listen there: {problem}") from None
    config = uvicorn.Config(
        Gateway(fleet, rules),
        log_level="warning",
        access_log=False,
        loop="asyncio",
        http="httptools",
        lifespan="off",
        server_header=False,
        timeout_keep_alive=75,
        ssl_certfile=None if certificate is None else str(certificate[0]),
        ssl_keyfile=None if certificate is None else str(certificate[1]),
    )
    watching = asyncio.ensure_future(fleet.watch())
    ready(listener.getsockname()[1])
    try:
        await uvicorn.Server(config).serve(sockets=[listener])
    finally:
        watching.cancel()
