"""``steelyard estimator-eval``"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from steelyard.balance.estimate import ESTIMATORS
from steelyard.cli.console import out
from steelyard.report.estimators import print_estimators
from steelyard.validate.estimators import DEFAULT, evaluate_file


def command(
    file: Annotated[Path, typer.Argument(help="Trajectory file (docs/trajectories.md), gzipped or not.")],
    estimator: Annotated[
        str | None, typer.Option(help=f"One of {', '.join(ESTIMATORS)} [default: all; as JSON, {DEFAULT}].")
    ] = None,
    folds: Annotated[int, typer.Option(help="Folds of cross-validation; each is held out once.")] = 5,
    json_: Annotated[bool, typer.Option("--json", help="Print one estimator's figures as JSON.")] = False,
) -> None:
    """Evaluate estimators of what a trajectory has left, on held-out tasks."""
    name = estimator or DEFAULT
    found = evaluate_file(file, [name] if estimator or json_ else list(ESTIMATORS), folds)
    if json_:
        typer.echo(json.dumps(found.as_dict(name), indent=2, allow_nan=False))
    else:
        print_estimators(found, out)
