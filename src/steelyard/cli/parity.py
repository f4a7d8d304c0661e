"""``steelyard parity``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress, say
from steelyard.errors import UserError
from steelyard.validate.parity import Verdict, compare, read_golden


def command(
    golden: Annotated[Path, typer.Argument(help="Golden file: vLLM's decisions, one scenario per line.")],
    plain: Annotated[
        bool, typer.Option("--plain", help="Replay with the plain reference path instead of the fast one.")
    ] = False,
) -> None:
    """Replay decisions of vLLM's own scheduler and compare every step."""
    verdicts: list[Verdict] = []
    scenarios = list(read_golden(golden))
    if not scenarios:
        raise UserError(f"{golden}: no scenario in it; a golden file has one JSON object per line")
    with LateProgress("replaying") as progress:
        for each in scenarios:
            verdicts.append(compare(each, plain=plain))
            progress(len(verdicts), len(scenarios))
    for verdict in verdicts:
        if verdict.difference is not None:
            say(f"{verdict.name}: {verdict.difference}")
    same = sum(verdict.difference is None for verdict in verdicts)
    typer.echo(f"{same}/{len(verdicts)} scenarios identical")
    raise typer.Exit(0 if same == len(verdicts) else 1)
