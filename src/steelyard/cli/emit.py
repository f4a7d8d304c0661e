"""``steelyard emit``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.checks import check_as_written
from steelyard.cli.console import err
from steelyard.cli.options import Set
from steelyard.cli.outputs import keep_inputs, scenario_inputs
from steelyard.deploy import TARGETS, Deployment, emit
from steelyard.deploy.emit import POSTTRAIN, check_target_name
from steelyard.files.writing import check_file, write_text
from steelyard.scenario import Scenario, load_scenario
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.scenario.posttrain_loading import load_posttrain


def command(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, for serving or for post-training.")],
    to: Annotated[str, typer.Option(help=f"Target: {', '.join(TARGETS)}.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write the files to; printed if not given.")] = None,
    set_: Set = None,
) -> None:
    """Write what runs a scenario's fleet with vLLM, SGLang, Dynamo, KServe, verl or slime.

    Every simulated setting that the target can be told is told. What it cannot be told, or does otherwise, is said in a
    comment on top of each file and on standard error (docs/deployable.md).
    """
    check_target_name(to)
    loaded: Scenario | PosttrainScenario
    loaded = load_posttrain(scenario, set_ or []) if to in POSTTRAIN else load_scenario(scenario, set_ or [])
    if isinstance(loaded, PosttrainScenario):
        check_as_written(loaded)
    made = emit(loaded, to)
    check_deployment(made, out, scenario, loaded)
    write_deployment(made, out)


def check_deployment(made: Deployment, out: Path | None, scenario: Path, loaded: Scenario | PosttrainScenario) -> None:
    """Raise UserError unless a deployment can be written, and replaces nothing that was read."""
    if out is not None:
        paths = [out / name for name in made.files]
        keep_inputs(f"--out {out}", paths, scenario_inputs(scenario, loaded))
        for path in paths:
            check_file(path)


def write_deployment(made: Deployment, out: Path | None) -> None:
    """Write a deployment to a folder, or print it."""
    if out is None:
        for name, text in made.files.items():
            typer.echo(f"# ==> {name} <==\n{text}")
        return
    for name, text in made.files.items():
        write_text(out / name, text)
    _tell(made, out)


def _tell(made: Deployment, out: Path) -> None:
    for name in made.files:
        typer.echo(str(out / name))
    for note in made.notes:
        err.print(f"note: {note}", soft_wrap=True, highlight=False)
