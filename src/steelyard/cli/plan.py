"""``steelyard plan``"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress, say
from steelyard.cli.console import out as console
from steelyard.cli.emit import check_deployment, write_deployment
from steelyard.cli.options import Posttrain, Set
from steelyard.deploy.emit import POSTTRAIN, emit
from steelyard.deploy.rollout import ENGINES, emit_engines
from steelyard.errors import UserError, did_you_mean
from steelyard.posttrain.advice import plan
from steelyard.records.jsontext import readable
from steelyard.report.advice import advice_data, print_advice
from steelyard.report.steps_per_day import steps_figures, steps_lines
from steelyard.scenario import load_posttrain
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.search.steps_per_day import gpus_for_steps

_TARGETS = (*POSTTRAIN, *ENGINES)


def command(
    scenario: Posttrain,
    set_: Set = None,
    steps_per_day: Annotated[
        float | None,
        typer.Option(min=1e-3, max=1e6, help="Find the smallest number of GPUs that makes so many steps a day."),
    ] = None,
    to: Annotated[
        str | None, typer.Option(help=f"Also write the plan for {', '.join(_TARGETS)} (docs/deployable.md).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for these files; printed if not given.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Recommend how to split a scenario's GPUs between rollout and training, and how to lay both out.

    Plans are simulated, or predicted by a model (--set planner=search), which is faster.
    """
    loaded = load_posttrain(scenario, set_ or [])
    _check_output(to, out, steps_per_day, json_)
    if steps_per_day is not None:
        _size(loaded, steps_per_day, json_)
        return
    with LateProgress("simulating plans") as progress:
        advice = plan(loaded, watch=progress)
    if json_:
        typer.echo(json.dumps(advice_data(advice), indent=2))
    else:
        print_advice(advice, console)
    if to is not None:
        made = emit(advice.scenario, to) if to in POSTTRAIN else emit_engines(advice.scenario, to)
        check_deployment(made, out, scenario, loaded)
        write_deployment(made, out)


def _check_output(to: str | None, out: Path | None, steps_per_day: float | None, json_: bool) -> None:
    """Refuse options that do not go together before anything is simulated."""
    if to is None:
        if out is not None:
            raise UserError(f"--out {out}: nothing is written; also give --to")
        return
    if to not in _TARGETS:
        raise UserError(f"--to: {to!r} is not a target for a plan; {did_you_mean(to, _TARGETS)}")
    if steps_per_day is not None:
        raise UserError("--to: is for a plan of the scenario's GPUs; leave out --steps-per-day")
    if json_ and out is None:
        raise UserError("--to: with --json, files cannot be printed; also give --out")


def _size(scenario: PosttrainScenario, wanted: float, as_json: bool) -> None:
    with LateProgress("simulating plans") as progress:
        answer = gpus_for_steps(scenario, wanted, progress)
    if as_json:
        typer.echo(readable(steps_figures(answer)), nl=False)
        return
    for line in steps_lines(answer):
        say(line)
