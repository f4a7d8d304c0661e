"""``steelyard gateway``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.balance.route.serving import SERVING_ROUTERS, serving_router
from steelyard.cli.console import say
from steelyard.errors import UserError, did_you_mean


def command(
    engines: Annotated[list[str], typer.Argument(help="Addresses of engines, such as http://127.0.0.1:8000.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 chooses a free one.")] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    router: Annotated[str, typer.Option(help=f"How an engine is chosen: {', '.join(SERVING_ROUTERS)}.")] = "kv-aware",
    tokens: Annotated[
        Path | None, typer.Option(help="File with a scope (client, engine, operator) and a token on each line.")
    ] = None,
    rate: Annotated[float | None, typer.Option(min=1.0, max=1e6, help="Most requests a second for each token.")] = None,
    most_mb: Annotated[int, typer.Option(min=1, max=1024, help="Largest body, in MB.")] = 16,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key.")] = None,
    log: Annotated[
        Path | None, typer.Option(help="Add a line for each request to this file: time, tokens, hash of the session.")
    ] = None,
) -> None:
    """Put one address in front of OpenAI-compatible engines, with the routers of a simulated fleet.

    An interrupt (Ctrl-C) ends it.
    """
    if router not in SERVING_ROUTERS:
        raise UserError(f"--router: {router!r} is not known; {did_you_mean(router, SERVING_ROUTERS)}")
    if (certificate is None) != (key is None):
        raise UserError("--certificate and --key: give both or neither")
    try:
        from steelyard.live.access import Access
        from steelyard.live.fleet import EngineFleet
        from steelyard.live.loop import run_on_uvloop
        from steelyard.live.rules import GatewayRules, Rates
        from steelyard.live.serve import serve_gateway
        from steelyard.live.upstream import Upstream
    except ImportError as missing:
        raise UserError(f"gateway needs {missing.name}; install steelyard[live]") from None
    fleet = EngineFleet([Upstream.of(each) for each in engines], serving_router(router, len(engines), seed=0))
    access = Access() if tokens is None else Access.read(tokens)
    rules = GatewayRules(access, most_mb << 20, None if rate is None else Rates(rate))
    tls = None if certificate is None or key is None else (certificate, key)

    def ready(found: int) -> None:
        scheme = "http" if tls is None else "https"
        say(f"{len(engines)} engines at {scheme}://{host}:{found}/v1, {router}")

    run_on_uvloop(serve_gateway(fleet, rules, host, port, ready, tls, log))
