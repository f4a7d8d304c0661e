"""``steelyard compare``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.console import LateProgress
from steelyard.cli.console import out as console
from steelyard.cli.options import Figures, Set
from steelyard.cli.outputs import keep_inputs, scenario_inputs
from steelyard.posttrain.compare import compare
from steelyard.posttrain.compare_choices import DIMENSIONS
from steelyard.posttrain.compare_settings import CompareSettings
from steelyard.report.compare import print_comparison
from steelyard.report.compare_files import check_page, comparison_json, write_comparison

_MOST_SEEDS = 100  # chosen: a mean's standard error is then a tenth of the spread; scenarios of all runs are held


def _names(dimension: str) -> Any:
    return typer.Option(
        help=f"Any of {', '.join(map(str, DIMENSIONS[dimension]))}; separated by commas [default: all]."
    )


def command(
    scenarios: Annotated[list[Path], typer.Argument(help="Post-training scenarios (docs/posttrain.md).")],
    out: Annotated[Path, typer.Option(help="Folder of results; runs that it has are not repeated.")] = Path(
        "runs/comparison"
    ),
    set_: Set = None,
    modes: Annotated[str | None, _names("mode")] = None,
    routers: Annotated[str | None, _names("router")] = None,
    estimators: Annotated[str | None, _names("estimator")] = None,
    planners: Annotated[str | None, _names("planner")] = None,
    tails: Annotated[str | None, _names("tail")] = None,
    pools: Annotated[str | None, _names("pool")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Every mode with every router, planner and tail: thousands of runs.")
    ] = False,
    rivals: Annotated[bool, typer.Option(help="Whether to run other systems, too.")] = True,
    steps: Annotated[int | None, typer.Option(min=1, help="Training steps; the scenario's own if not given.")] = None,
    scale: Annotated[
        str,
        typer.Option(help="Share of prompts, engines and training replicas: one for all scenarios, or 0.5,0.25,..."),
    ] = "1",
    seeds: Annotated[
        int,
        typer.Option(min=1, max=_MOST_SEEDS, help="Seeds, from the scenario's on, for ways close to the best."),
    ] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time, each in a process of its own.")] = 1,
    page: Annotated[
        Path | None, typer.Option(help="Also write a Markdown page, with its images and figures (JSON) beside it.")
    ] = None,
    json_: Figures = False,
) -> None:
    """Compare ways to run post-training: ours, bounds, other systems, and ours with one setting changed."""
    given = {
        "mode": modes,
        "router": routers,
        "estimator": estimators,
        "planner": planners,
        "tail": tails,
        "pool": pools,
    }
    settings = CompareSettings(
        changes=[*(set_ or []), *([] if steps is None else [f"steps={steps}"])],
        names={dimension: names for dimension, names in given.items() if names is not None},
        full=full,
        rivals=rivals,
        scale=scale,
        seeds=seeds,
    )
    contenders, loaded = settings.contenders(), settings.scenarios(scenarios)
    kept = [out / "results.jsonl"]
    inputs = [each for pair in zip(scenarios, loaded, strict=True) for each in scenario_inputs(*pair)]
    keep_inputs(f"--out {out}", kept, inputs)
    if page is not None:
        check_page(page)
        keep_inputs(f"--page {page}", [page, page.with_suffix(".json")], [*inputs, *kept])
    with LateProgress("comparing") as progress:
        found = compare(loaded, contenders, out, workers, progress, seeds)
    if page is not None:
        write_comparison(found, page, settings.command(scenarios, page))
    if json_:
        typer.echo(comparison_json(found))
        return
    for each in found:
        print_comparison(each, console)
