"""``steelyard advise``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress
from steelyard.cli.console import out as console
from steelyard.cli.options import Figures, Set
from steelyard.cli.outputs import keep_inputs, scenario_inputs
from steelyard.files.writing import check_file, write_text
from steelyard.report.advise import advice_json, print_advice
from steelyard.report.advise_page import advice_page
from steelyard.scenario import load_scenario
from steelyard.scenario.numbers import MOST_REPLICAS, MOST_SECONDS
from steelyard.search.advise import POLICIES, AdviseSettings, advise


def command(
    trace: Annotated[Path, typer.Argument(help="Recorded requests: Azure, Mooncake, vllm-bench, or a gateway's log.")],
    fleet: Annotated[
        Path, typer.Option(help="Scenario whose model, GPU, engine and slo are used; its workload is not.")
    ],
    set_: Set = None,
    policies: Annotated[
        str | None, typer.Option(help=f"Any of {', '.join(POLICIES)}; separated by commas [default: all].")
    ] = None,
    least: Annotated[int, typer.Option("--min", min=1, max=MOST_REPLICAS, help="Fewest replicas.")] = 1,
    most: Annotated[
        int | None,
        typer.Option("--max", min=1, max=MOST_REPLICAS, help="Most replicas [default: twice the fixed fleet's]."),
    ] = None,
    startup: Annotated[float, typer.Option(min=0, max=MOST_SECONDS, help="Seconds until a new replica serves.")] = 60.0,
    speed: Annotated[float, typer.Option(min=1e-3, max=1e3, help="Replay the trace so many times as fast.")] = 1.0,
    start: Annotated[float, typer.Option("--from", min=0, max=MOST_SECONDS, help="Second of the trace.")] = 0.0,
    end: Annotated[
        float | None, typer.Option("--to", min=0, max=MOST_SECONDS, help="Second of the trace [default: its end].")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time, each in a process of its own.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Also write all figures to this file (JSON).")] = None,
    page: Annotated[Path | None, typer.Option(help="Also write a page with figures (HTML).")] = None,
    json_: Figures = False,
) -> None:
    """Replay recorded traffic against fixed and autoscaled fleets: what each would have cost and missed.

    Settings of all policies are chosen on the first half of the trace, and judged on the second.
    """
    settings = AdviseSettings(least, most, startup, speed, start, end, AdviseSettings.named(policies), workers)
    scenario = load_scenario(fleet, set_ or [])
    inputs = [trace, *scenario_inputs(fleet, scenario)]
    for option, file in (("--out", out), ("--page", page)):
        if file is not None:
            keep_inputs(f"{option} {file}", [file], inputs)
            check_file(file)
    with LateProgress("replaying") as progress:
        found = advise(scenario, trace, settings, progress)
    if out is not None:
        write_text(out, advice_json(found))
    if page is not None:
        write_text(page, advice_page(found))
    if json_:
        typer.echo(advice_json(found), nl=False)
    else:
        print_advice(found, console)
