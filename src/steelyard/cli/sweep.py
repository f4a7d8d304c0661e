"""``steelyard sweep``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress, err, say
from steelyard.cli.options import Figures, Set
from steelyard.cli.outputs import keep_inputs
from steelyard.files.writing import check_file
from steelyard.records.jsontext import readable
from steelyard.report.names import file_name
from steelyard.report.sweep import SWEEP_FILES, sweep_figures, sweep_lines, write_sweep
from steelyard.scenario.load import ScenarioFile
from steelyard.scenario.overrides import parse_override
from steelyard.search.grid import parse_axes
from steelyard.search.sweep import SweepPlan, sweep_rows

JOURNAL = "journal.jsonl"


def command(
    scenario: Annotated[Path, typer.Argument(help="Serving scenario, YAML or JSON.")],
    over: Annotated[
        list[str] | None,
        typer.Option(
            help="An axis: KEY=VALUE,VALUE,... or KEY=FROM:TO:COUNT, with :log at equal ratios. Give one or more."
        ),
    ] = None,
    set_: Set = None,
    capacity: Annotated[
        bool, typer.Option("--capacity", help="Find the largest rate of each point, instead of simulating its own.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results; points that it has are not repeated [default: in runs].")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes, each with a point at a time.")] = 0,
    json_: Figures = False,
) -> None:
    """Simulate a grid of scenarios, or find the capacity of each, to a table and charts.

    An interrupted or killed sweep goes on where it was when the command is given again.
    """
    axes = parse_axes(over or [])
    changes = tuple(parse_override(text) for text in set_ or [])
    plan = SweepPlan(ScenarioFile(scenario), changes, axes, capacity)
    folder = Path("runs") / f"{file_name(plan.name)}-sweep-{plan.tag}" if out is None else out
    files = [folder / name for name in (*SWEEP_FILES, JOURNAL)]
    for each in files:
        check_file(each)
    keep_inputs(f"--out {folder}", files, [scenario])
    try:
        with LateProgress("points") as progress:
            rows = sweep_rows(plan, folder / JOURNAL, workers, progress)
    except KeyboardInterrupt:
        told = f"interrupted: {folder / JOURNAL} has what was found; the same command goes on from there"
        err.print(told, soft_wrap=True, highlight=False)
        raise typer.Exit(130) from None
    write_sweep(plan, rows, folder)
    if json_:
        typer.echo(readable(sweep_figures(plan, rows)), nl=False)
        return
    for line in sweep_lines(plan, rows):
        say(line)
    say(f"result folder: {folder}")
