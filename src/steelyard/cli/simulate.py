"""``steelyard simulate``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress, say
from steelyard.cli.console import out as console
from steelyard.cli.options import Out, Overwrite, Set, Summary
from steelyard.report import choose_output_dir, print_summary, summary_json, write_result
from steelyard.scenario import load_scenario
from steelyard.sim import simulate, with_intervals

_SMALL = 5000  # requests of a run that is repeated for its intervals without being asked


def command(
    scenario: Annotated[Path, typer.Argument(help="Scenario file, YAML or JSON.")],
    out: Out = None,
    overwrite: Overwrite = False,
    set_: Set = None,
    json_: Summary = False,
    trace: Annotated[bool, typer.Option("--trace", help="Also write a trace for Perfetto.")] = False,
    intervals: Annotated[
        bool | None,
        typer.Option(
            "--intervals/--no-intervals",
            help="Run again with costs and seed moved, to say how sure each figure is "
            f"[default: up to {_SMALL} requests].",
        ),
    ] = None,
) -> None:
    """Simulate a scenario and write its result folder."""
    loaded = load_scenario(scenario, set_ or [])
    folder = choose_output_dir(out, loaded.name, overwrite)
    with LateProgress("simulating") as progress:
        result = simulate(loaded, progress=progress)
    if intervals or (intervals is None and result.summary.requests <= _SMALL):
        with LateProgress("and again, moved") as progress:
            result = with_intervals(result, progress)
    write_result(result, folder, trace=trace)
    if json_:
        sys.stdout.buffer.write(summary_json(result).encode())
    else:
        print_summary(result, console)
        say(f"\nresult folder: {folder}\nreport:        {folder / 'report.html'}")
