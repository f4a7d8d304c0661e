"""``steelyard emulate``"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import say
from steelyard.cli.options import Set
from steelyard.errors import UserError
from steelyard.scenario import load_scenario


def command(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, YAML or JSON.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="First port; 0 chooses free ones.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    speed: Annotated[float, typer.Option(min=0.01, max=1000.0, help="Engine seconds per second.")] = 1.0,
    name: Annotated[str | None, typer.Option(help="Model name that clients use [default: the scenario's].")] = None,
    set_: Set = None,
) -> None:
    """Serve a scenario's engines over HTTP without a GPU, in real time.

    The interface is OpenAI's, and times are the simulator's. Each replica listens at a port of its own, from the first
    one on. An interrupt (Ctrl-C) ends them.
    """
    try:
        from steelyard.emulate.serve import replicas_of, serve
    except ImportError as missing:
        raise UserError(f"emulate needs {missing.name}; install steelyard[live]") from None
    loaded = load_scenario(scenario, set_ or [])

    async def run() -> int:
        replicas = replicas_of(loaded, speed, name)

        def ready(ports: list[int]) -> None:
            for replica, each in zip(replicas, ports, strict=True):
                say(f"{replica.name} at http://{host}:{each}/v1, {speed:g}x, {replica.gpus} emulated GPUs")

        return await serve(replicas, host, port, ready)

    raise typer.Exit(asyncio.run(run()))
