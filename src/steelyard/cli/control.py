"""``steelyard control``"""

from __future__ import annotations

import asyncio
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
        typer.Argument(help="After `status`, `plan`, `drain`...: a run's folder, and an engine."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME-live-N if not given.")] = None,
    set_: Set = None,
    speed: Annotated[
        float | None,
        typer.Option(min=0.01, max=1000.0, help="Of emulated engines: their seconds in a second; 20 by default."),
    ] = None,
    on: Annotated[str, typer.Option(help=f"What runs its parts: {' or '.join(_WAYS)}.")] = "ray",
    address: Annotated[str | None, typer.Option(help="Join a Ray cluster instead of starting one here.")] = None,
) -> None:
    """Run post-training under the live controller: on emulated engines, or a small model that really learns.

    The controller, the gateway, agents, the trainer and every engine are processes of their own. They are started
    again if they die. A post-training scenario runs on emulated engines and is compared with its simulation.
    `control status FOLDER` shows a run that is under way, `control drain FOLDER 2` takes an engine out, and `restore`
    takes it back. `control plan FOLDER` shows what the planner proposes, `pause` lets proposals wait for `apply`, and
    `continue` carries them out again as they come.
    """
    if on not in _WAYS:
        raise UserError(f"--on: must be {' or '.join(_WAYS)} (found {on!r})")
    try:
        from steelyard.cli import control_runs
    except ImportError as missing:
        raise UserError(f"control needs {missing.name}; install steelyard[live]") from None
    if str(scenario) in control_runs.ACTIONS:
        control_runs.operate(str(scenario), more or [])
        return
    if more:
        raise UserError(f"{more[0]!r}: nothing comes after a scenario or a folder")
    if is_folder(scenario):
        control_runs.resume(scenario, set_ or [], speed, lambda run: _carry_out(run, on, address))
        return
    learns = "task" in read_mapping(scenario)[0]
    begin = control_runs.learn if learns else control_runs.emulate
    begin(scenario, set_ or [], out, speed, lambda run: _carry_out(run, on, address))


def _carry_out(run: LiveRun, on: str, address: str | None) -> None:
    say(f"{len(run.parts)} parts, files in {run.folder}")
    if on == "ray":
        try:
            from steelyard.live.ray_cluster import run_on_ray
        except ImportError as missing:
            raise UserError(f"--on ray needs {missing.name}; install steelyard[live], or use --on processes") from None
        run_on_ray(run, address)
        return
    from steelyard.live.supervise import Supervisor

    def restarted(name: str, code: int) -> None:
        say(f"{name} ended with code {code} and is started again")

    asyncio.run(Supervisor(run, restarted).run())
