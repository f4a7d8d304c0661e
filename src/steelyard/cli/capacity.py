"""``steelyard capacity``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress, say
from steelyard.cli.options import Figures, Set
from steelyard.cli.outputs import keep_inputs, scenario_inputs
from steelyard.errors import UserError
from steelyard.files.writing import check_file, write_text
from steelyard.records.jsontext import readable
from steelyard.report.capacity import capacity_figures, capacity_lines, fleet_figures, fleet_lines
from steelyard.report.questions import break_even_figures, break_even_lines, ratio_figures, ratio_lines
from steelyard.report.tornado import tornado_figures, tornado_lines, tornado_page
from steelyard.scenario import Scenario, load_scenario
from steelyard.search.breakeven import break_even
from steelyard.search.capacity import capacity, smallest_fleet
from steelyard.search.ratio import best_ratio
from steelyard.search.tornado import tornado

Answer = tuple[list[str], dict[str, object]]  # in lines, and as figures


def command(
    scenario: Annotated[Path, typer.Argument(help="Serving scenario with limits (slo), YAML or JSON.")],
    set_: Set = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=1e-5, max=1e6, help="Arrivals per second: find the smallest fleet that carries them, by replicas."
        ),
    ] = None,
    ratio: Annotated[
        bool, typer.Option("--ratio", help="Find the best split of the same GPUs between prefill and decode pools.")
    ] = False,
    break_even_: Annotated[
        str | None,
        typer.Option("--break-even", help="POOL=GPU: the price at which this type gives as many tokens per dollar."),
    ] = None,
    tornado_: Annotated[
        bool, typer.Option("--tornado", help="Move each assumption down and up, and show how the answer changes.")
    ] = False,
    page: Annotated[Path | None, typer.Option(help="Also write the chart of --tornado, as a page (HTML).")] = None,
    seeds: Annotated[int, typer.Option(min=0, max=100, help="Further seeds, for how sure the answer is.")] = 3,
    costs: Annotated[bool, typer.Option(help="Whether to repeat the answer with each cost off by its error.")] = True,
    workers: Annotated[int, typer.Option(min=0, help="Processes for repetitions, splits or assumptions.")] = 0,
    json_: Figures = False,
) -> None:
    """Find the largest rate that a fleet carries within its limits, or the smallest fleet for a rate.

    Further questions, one at a time: the best split between pools (--ratio), the price at which another GPU type
    breaks even (--break-even), and what the answer depends on (--tornado).
    """
    asked = {"--rate": rate is not None, "--ratio": ratio, "--break-even": break_even_ is not None}
    asked["--tornado"] = tornado_
    _one_of([option for option, given in asked.items() if given], page)
    loaded = load_scenario(scenario, set_ or [])
    if page is not None:
        check_file(page)
        keep_inputs(f"--page {page}", [page], scenario_inputs(scenario, loaded))
    if rate is not None:
        size = smallest_fleet(loaded, rate)
        answer: Answer = fleet_lines(size, loaded), fleet_figures(size)
    elif ratio:
        answer = _ratio(loaded, workers)
    elif break_even_ is not None:
        answer = _break_even(loaded, break_even_, workers)
    elif tornado_:
        answer = _tornado(loaded, workers, page)
    else:
        with LateProgress("repetitions") as progress:
            found = capacity(loaded, seeds=seeds, costs=costs, workers=workers, progress=progress)
        answer = capacity_lines(found, loaded), capacity_figures(found)
    _show(answer, json_)


def _one_of(asked: list[str], page: Path | None) -> None:
    if len(asked) > 1:
        raise UserError(f"{' and '.join(asked)} are different questions; ask one at a time")
    if page is not None and asked != ["--tornado"]:
        raise UserError(f"--page {page}: only --tornado has a chart; leave it out, or give --tornado")


def _ratio(scenario: Scenario, workers: int) -> Answer:
    with LateProgress("splits") as progress:
        found = best_ratio(scenario, workers, progress)
    return ratio_lines(found), ratio_figures(found)


def _break_even(scenario: Scenario, asked: str, workers: int) -> Answer:
    with LateProgress("layouts") as progress:
        found = break_even(scenario, asked, workers, progress)
    return break_even_lines(found), break_even_figures(found)


def _tornado(scenario: Scenario, workers: int, page: Path | None) -> Answer:
    with LateProgress("assumptions") as progress:
        found = tornado(scenario, workers, progress)
    if page is not None:
        write_text(page, tornado_page(found, scenario.name))
    return tornado_lines(found), tornado_figures(found)


def _show(answer: Answer, as_json: bool) -> None:
    lines, figures = answer
    if as_json:
        typer.echo(readable(figures), nl=False)
        return
    for line in lines:
        say(line)
