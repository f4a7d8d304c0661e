"""One address for a stack that takes a URL: the gateway, and beside it what this stack asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvicorn

from steelyard.emulate.servers import LocalServer, listen, stop_on_signals
from steelyard.errors import UserError, did_you_mean
from steelyard.live.access import Access
from steelyard.live.adapters.calls import Beside, PathApp
from steelyard.live.adapters.prime_rl import prime_rl_apps
from steelyard.live.adapters.skyrl import skyrl_apps
from steelyard.live.adapters.slime import slime_apps
from steelyard.live.adapters.workers import WorkerFleet
from steelyard.live.gateway import Gateway
from steelyard.live.rules import GatewayRules

STACKS: dict[str, Callable[[WorkerFleet, Access], list[PathApp]]] = {
    "slime": slime_apps,
    "skyrl": skyrl_apps,
    "prime-rl": prime_rl_apps,
}
_LOCAL = ("127.0.0.1", "::1", "localhost")


def stack_app(stack: str, fleet: WorkerFleet, rules: GatewayRules) -> Beside:
    """The application for a stack."""
    if stack not in STACKS:
        raise UserError(f"stack: {stack!r} is not known; {did_you_mean(stack, STACKS)}")
    return Beside(STACKS[stack](fleet, rules.access), Gateway(fleet, rules))


async def serve_stack(
    app: Beside, fleet: WorkerFleet, host: str, port: int, ready: Callable[[int], None], *, guarded: bool
) -> None:
    """Serve until interrupted. Without tokens and outside of a trusted network, this machine only."""
    if host not in _LOCAL and not guarded:
        raise UserError(f"--host {host}: other machines can reach it; give --tokens FILE or --trusted-network")
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        loop="asyncio",
        http="httptools",
        lifespan="off",
        server_header=False,
        timeout_keep_alive=75,
    )
    listener = listen(host, port)
    watching = asyncio.ensure_future(fleet.watch())
    ready(listener.getsockname()[1])
    try:
        server = LocalServer(config)
        stop_on_signals([server])
        await server.serve(sockets=[listener])
    finally:
        watching.cancel()
