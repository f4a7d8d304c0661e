"""``steelyard control``"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from steelyard.cli.console import say
from steelyard.cli.options import Set
from steelyard.errors import UserError
from steelyard.files.finding import is_folder
from steelyard.scenario.reading import read_mapping

if TYPE_CHECKING:
    from steelyard.live.runs import LiveRun

_WAYS = ("ray", "processes")


def command(
    scenario: Annotated[
        Path,
        typer.Argument(help="Post-training scenario or live scenario, YAML or JSON; or a run's folder, to resume it."),
    ],
    more: Annotated[
        list[str] | None,
        typer.Argument(help="After `status`, `top`, `plan`, `drain`...: a run's folder, and an engine."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME-live-N if not given.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run of --out if it was begun, as services do at a restart.")
    ] = False,
    set_: Set = None,
    speed: Annotated[
        float | None,
        typer.Option(min=0.01, max=1000.0, help="Of emulated engines: their seconds in a second; 20 by default."),
    ] = None,
    on: Annotated[str, typer.Option(help=f"What runs its parts: {' or '.join(_WAYS)}.")] = "ray",
    address: Annotated[str | None, typer.Option(help="Join a Ray cluster instead of starting one here.")] = None,
    host: Annotated[str, typer.Option(help="Address that parts listen at with --on processes.")] = "127.0.0.1",
    tokens: Annotated[
        Path | None,
        typer.Option(help="File with a scope (client, engine, operator) and a token on each line; made if needed."),
    ] = None,
    metrics: Annotated[int, typer.Option(min=0, max=65535, help="Port of the controller's metrics; 0 is any.")] = 0,
) -> None:
    """Run post-training under the live controller: on emulated engines, or a small model that really learns.

    The controller, the gateway, agents, the trainer and every engine are processes of their own. They are started
    again if they die. A post-training scenario runs on emulated engines and is compared with its simulation.
    `control status FOLDER` shows a run that is under way and `control top FOLDER` keeps showing it. `control drain
    FOLDER 2` takes an engine out, and `restore` takes it back. `control upgrade FOLDER` starts the controller anew.
    `control plan FOLDER` shows what the planner proposes, `pause` lets proposals wait for `apply`, and `continue`
    carries them out again as they come.
    """
    if on not in _WAYS:
        raise UserError(f"--on: must be {' or '.join(_WAYS)} (found {on!r})")
    if resume and out is None:
        raise UserError("--resume: needs --out, the folder of the run")
    if on == "ray" and host != "127.0.0.1":
        raise UserError("--host: is for --on processes; with Ray, parts listen at the addresses of its nodes")
    try:
        from steelyard.cli import control_runs
    except ImportError as missing:
        raise UserError(f"control needs {missing.name}; install steelyard[live]") from None
    if str(scenario) in control_runs.ACTIONS:
        control_runs.operate(str(scenario), more or [])
        return
    if more:
        raise UserError(f"{more[0]!r}: nothing comes after a scenario or a folder")
    carry_out = partial(_carry_out, on=on, address=address, host=host, tokens=tokens)
    if is_folder(scenario):
        control_runs.resume(scenario, set_ or [], speed, carry_out)
        return
    learns = "task" in read_mapping(scenario)[0]
    begin = control_runs.learn if learns else control_runs.emulate
    begin(control_runs.Asked(scenario, set_ or [], out, speed, metrics, resume), carry_out)


def _carry_out(run: LiveRun, on: str, address: str | None, host: str, tokens: Path | None) -> None:
    from steelyard.live.access import make_tokens
    from steelyard.live.addresses import TOKENS, PartHost

    say(f"{len(run.parts)} parts, files in {run.folder}")
    here = PartHost.of(host)
    if tokens is not None or address is not None or not here.is_local:
        make_tokens(run.folder / TOKENS, tokens)

    def restarted(name: str, code: int) -> None:
        say(f"{name} ended with code {code} and is started again")

    if on == "ray":
        try:
            from steelyard.live.ray_cluster import run_on_ray
        except ImportError as missing:
            raise UserError(f"--on ray needs {missing.name}; install steelyard[live], or use --on processes") from None
        run_on_ray(run, address, restarted)
        return
    from steelyard.live.supervise import Supervisor

    asyncio.run(Supervisor(run, restarted, lambda name: here).run())
