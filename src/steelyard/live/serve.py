"""Runs a gateway until it is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from steelyard.collector import collector_on_new
from steelyard.emulate.servers import LocalServer, listen, serve_at, stop_on_signals
from steelyard.errors import UserError
from steelyard.files.reading import read_text
from steelyard.live.access_log import AccessLog
from steelyard.live.client_connection import server_config
from steelyard.live.fleet import EngineFleet
from steelyard.live.gateway import Gateway
from steelyard.live.rules import GatewayRules

_LOCAL = ("127.0.0.1", "::1", "localhost")


async def serve_gateway(
    fleet: EngineFleet,
    rules: GatewayRules,
    host: str,
    port: int,
    ready: Callable[[int], None],
    certificate: tuple[Path, Path] | None = None,
    log: Path | None = None,
) -> None:
    """Serve at an address; ``certificate`` are the files of a certificate and its key, ``log`` that of requests."""
    if host not in _LOCAL and not rules.access.tokens:
        raise UserError(f"--host {host}: other machines can reach it, so it needs --tokens FILE")
    for path in certificate or ():
        read_text(path, wanted="a PEM file")
    access = None if log is None else AccessLog(log)
    watching = asyncio.ensure_future(fleet.watch())
    try:
        await serve_app(Gateway(fleet, rules, access=access), host, port, ready, certificate)
    finally:
        watching.cancel()
        if access is not None:
            access.close()


async def serve_app(
    app: Gateway,
    host: str,
    port: int,
    ready: Callable[[int], None],
    certificate: tuple[Path, Path] | None = None,
) -> None:
    """Serve a gateway until it is interrupted."""
    config = server_config(app, app.rules, certificate)
    try:
        config.load()
    except OSError as problem:
        raise UserError(f"--certificate, --key: not a certificate and its key: {problem}") from None
    listener = listen(host, port)
    ready(listener.getsockname()[1])
    server = LocalServer(config)
    stop_on_signals([server])
    with collector_on_new():
        await serve_at(server, listener)
