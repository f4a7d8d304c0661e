"""``steelyard capacity``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress, say
from steelyard.cli.options import Figures, Set
from steelyard.records.jsontext import readable
from steelyard.report.capacity import capacity_figures, capacity_lines, fleet_figures, fleet_lines
from steelyard.scenario import load_scenario
from steelyard.search.capacity import capacity, smallest_fleet


def command(
    scenario: Annotated[Path, typer.Argument(help="Serving scenario with limits (slo), YAML or JSON.")],
    set_: Set = None,
    rate: Annotated[
        float | None,
        typer.Option(
            min=1e-5, max=1e6, help="Arrivals per second: find the smallest fleet that carries them, by replicas."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=0, max=100, help="Further seeds, for how sure the answer is.")] = 3,
    costs: Annotated[bool, typer.Option(help="Whether to repeat the answer with each cost off by its error.")] = True,
    workers: Annotated[int, typer.Option(min=0, help="Processes for repetitions.")] = 0,
    json_: Figures = False,
) -> None:
    """Find the largest rate that a fleet carries within its limits, or the smallest fleet for a rate."""
    loaded = load_scenario(scenario, set_ or [])
    if rate is not None:
        size = smallest_fleet(loaded, rate)
        _show(fleet_figures(size) if json_ else fleet_lines(size, loaded))
        return
    with LateProgress("repetitions") as progress:
        found = capacity(loaded, seeds=seeds, costs=costs, workers=workers, progress=progress)
    _show(capacity_figures(found) if json_ else capacity_lines(found, loaded))


def _show(what: dict[str, object] | list[str]) -> None:
    if isinstance(what, dict):
        typer.echo(readable(what), nl=False)
        return
    for line in what:
        say(line)
