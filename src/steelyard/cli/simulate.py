"""``steelyard simulate``"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.checks import checking
from steelyard.cli.console import LateProgress, err, say
from steelyard.cli.console import out as console
from steelyard.cli.options import Check, Out, Overwrite, Set, Summary
from steelyard.cli.outputs import keep_scenario
from steelyard.errors import blaming
from steelyard.report import (
    OutputFolder,
    print_intervals,
    print_summary,
    summary_json,
    write_files,
)
from steelyard.scenario import load_scenario
from steelyard.sim import Result, simulate, with_intervals
from steelyard.sim.check import check as check_result

_SMALL = 5000  # most requests of a run that gets intervals by default


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
            help="Repeat the run with perturbed costs and other seeds, for intervals of all figures "
            f"[default: up to {_SMALL} requests].",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes for these repeated runs [default: one per core for long runs, else none]."),
    ] = None,
    check: Check = False,
) -> None:
    """Simulate a scenario and write its result folder.

    Figures are printed and written first. Then the run is repeated for its intervals, which are added at the end. An
    interrupt (Ctrl-C) during that time leaves the result without them; the exit code is 130. With --json one document
    is printed, at the end or on the interrupt.
    """
    loaded = load_scenario(scenario, set_ or [])
    keep_scenario(out, scenario, loaded)
    output = OutputFolder(out, loaded.name, overwrite)
    with LateProgress("simulating") as progress:
        result = simulate(loaded, progress=progress)
    if not json_:
        print_summary(result, console)
    with output.stage() as stage:
        write_files(result, stage, trace=trace)
    folder = output.path
    if not json_:
        say(f"\nresult folder: {folder}\nreport:        {folder / 'report.html'}")
        sys.stdout.flush()
    try:
        if intervals or (intervals is None and result.summary.requests <= _SMALL):
            with blaming(f"{folder} holds the result without its intervals"):
                result = _repeated(result, workers)
            output.update(result, trace=trace)
            if not json_:
                say("")
                print_intervals(result, console)
    except KeyboardInterrupt:
        err.print(f"interrupted: {folder} holds the result without its intervals", soft_wrap=True, highlight=False)
        raise typer.Exit(130) from None
    finally:
        if json_:
            sys.stdout.buffer.write(summary_json(result).encode())
    if check:
        with checking():
            check_result(result)


def _repeated(result: Result, workers: int | None) -> Result:
    with LateProgress("runs for intervals") as progress:
        return with_intervals(result, progress, workers)
