"""``steelyard emulate``"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import say
from steelyard.cli.options import Set
from steelyard.errors import UserError
from steelyard.scenario import Scenario, load_scenario

# Chosen: 1,024 open files, the usual limit, are a listening socket and three connections for each. Measured: an idle
# replica takes 0.4 MiB and 30 ms to start, and its memory of prompts up to 65 MiB, all in one process.
_MOST_REPLICAS = 256
_LAST_PORT = 65535


def command(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, YAML or JSON.")],
    port: Annotated[int, typer.Option(min=0, max=_LAST_PORT, help="First port; 0 chooses free ones.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    speed: Annotated[float, typer.Option(min=0.01, max=1000.0, help="Engine seconds per second.")] = 1.0,
    name: Annotated[str | None, typer.Option(help="Model name that clients use [default: the scenario's].")] = None,
    set_: Set = None,
) -> None:
    """Serve a scenario's engines over HTTP without a GPU, in real time.

    The interface is OpenAI's, and times are the simulator's. Each of up to 256 replicas listens at a port of its own,
    from the first one on. An interrupt (Ctrl-C) ends them.
    """
    try:
        from steelyard.emulate.serve import replicas_of, serve
    except ImportError as missing:
        raise UserError(f"emulate needs {missing.name}; install steelyard[live]") from None
    loaded = load_scenario(scenario, set_ or [])
    _check_replicas(loaded, port)

    async def run() -> int:
        replicas = replicas_of(loaded, speed, name)

        def ready(ports: list[int]) -> None:
            for replica, each in zip(replicas, ports, strict=True):
                say(f"{replica.name} at http://{host}:{each}/v1, {speed:g}x, {replica.gpus} emulated GPUs")

        return await serve(replicas, host, port, ready)

    raise typer.Exit(asyncio.run(run()))


def _check_replicas(scenario: Scenario, port: int) -> None:
    """Refuse more replicas than one process can serve, or than there are ports for."""
    number = sum(pool.replicas for pool in scenario.fleet.pools)
    if number > _MOST_REPLICAS:
        raise UserError(
            f"{scenario.source}: fleet: {number:,} replicas; at most {_MOST_REPLICAS} can be emulated, since one "
            "process has the ports, connections and memory of all; give fewer replicas"
        )
    if port and port + number - 1 > _LAST_PORT:
        raise UserError(
            f"--port {port}: {number} replicas need ports up to {port + number - 1}, and the last is {_LAST_PORT}; "
            f"give at most {_LAST_PORT + 1 - number}, or 0 for free ones"
        )
