"""``steelyard compare``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from steelyard.cli.compare_serving import compare_columns
from steelyard.cli.console import LateProgress
from steelyard.cli.console import out as console
from steelyard.cli.options import Figures, Set
from steelyard.cli.outputs import keep_inputs, scenario_inputs
from steelyard.errors import UserError, shown
from steelyard.posttrain.compare import compare
from steelyard.posttrain.compare_choices import DIMENSIONS
from steelyard.posttrain.compare_settings import CompareSettings
from steelyard.report.compare import print_comparison
from steelyard.report.compare_files import check_page, comparison_json, write_comparison
from steelyard.search.compare.given import kind_of

_MOST_SEEDS = 100  # chosen: a mean's standard error is then a tenth of the spread; scenarios of all runs are held
_SERVING_SEEDS = 8  # chosen: differences of at least 1.7 times their spread over seeds are found (Holm, 26 figures)


def _names(dimension: str) -> Any:
    return typer.Option(
        help=f"Post-training: also run our policies with another {dimension}: any of "
        f"{', '.join(map(str, DIMENSIONS[dimension]))}; separated by commas."
    )


def command(
    given: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|SCENARIO...",
            help="Serving scenarios and result folders of simulate, of which the first is the base (docs/compare.md); "
            "or post-training scenarios (docs/posttrain.md).",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Post-training: folder of results; runs that it has are not repeated [default: runs/comparison]."
        ),
    ] = None,
    set_: Set = None,
    modes: Annotated[str | None, _names("mode")] = None,
    routers: Annotated[str | None, _names("router")] = None,
    estimators: Annotated[str | None, _names("estimator")] = None,
    planners: Annotated[str | None, _names("planner")] = None,
    tails: Annotated[str | None, _names("tail")] = None,
    pools: Annotated[str | None, _names("pool")] = None,
    full: Annotated[
        bool | None,
        typer.Option(
            "--full", help="Post-training: every mode with every router, planner and tail: thousands of runs."
        ),
    ] = None,
    rivals: Annotated[
        bool | None,
        typer.Option(
            "--rivals/--no-rivals", help="Post-training: whether to run other systems, too [default: rivals]."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Post-training: training steps; the scenario's own if not given.")
    ] = None,
    scale: Annotated[
        str | None,
        typer.Option(
            help="Post-training: share of prompts, engines and training replicas: one for all scenarios, or "
            "0.5,0.25,... [default: 1]."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=_MOST_SEEDS,
            help=f"Seeds, from the (first) scenario's on [default: {_SERVING_SEEDS}]. Post-training: for ways close to "
            "the best [default: 1].",
        ),
    ] = None,
    costs: Annotated[
        bool,
        typer.Option("--costs", help="Serving: also how far differences may be off by the stated errors of costs."),
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time, each in a process of its own.")] = 1,
    page: Annotated[
        Path | None,
        typer.Option(
            help="Also write a page: HTML for serving; for post-training Markdown, with its images and figures (JSON) "
            "beside it."
        ),
    ] = None,
    json_: Figures = False,
) -> None:
    """Compare serving scenarios or results side by side, or ways to run post-training.

    For serving all scenarios are simulated with the same seeds, and each difference to the first one is judged: better,
    worse, too small to matter, or no clear difference. Ways to run post-training are ours, bounds, other systems, and
    our policies with one changed.
    """
    names = {
        "mode": modes,
        "router": routers,
        "estimator": estimators,
        "planner": planners,
        "tail": tails,
        "pool": pools,
    }
    after: dict[str, Any] = {f"--{dimension}s": value for dimension, value in names.items()}
    after |= {"--out": out, "--full": full, "--rivals": rivals, "--steps": steps, "--scale": scale}
    if kind_of(given) == "serving":
        _refuse(after, given, "post-training", "serving")
        compare_columns(given, set_ or [], seeds or _SERVING_SEEDS, workers, costs, page, json_)
        return
    _refuse({"--costs": costs or None}, given, "serving", "post-training")
    settings = CompareSettings(
        changes=[*(set_ or []), *([] if steps is None else [f"steps={steps}"])],
        names={dimension: names for dimension, names in names.items() if names is not None},
        full=bool(full),
        rivals=rivals is not False,
        scale="1" if scale is None else scale,
        seeds=seeds or 1,
    )
    _compare_ways(given, settings, out or Path("runs/comparison"), workers, page, json_)


def _refuse(options: dict[str, Any], given: list[Path], kind: str, asked: str) -> None:
    for option, value in options.items():
        if value is not None:
            raise UserError(f"{option}: is for {kind}, and {shown(given[0])} is for {asked}; leave it out")


def _compare_ways(
    scenarios: list[Path], settings: CompareSettings, out: Path, workers: int, page: Path | None, json_: bool
) -> None:
    """Ways to run post-training."""
    contenders, loaded = settings.contenders(), settings.scenarios(scenarios)
    kept = [out / "results.jsonl"]
    inputs = [each for pair in zip(scenarios, loaded, strict=True) for each in scenario_inputs(*pair)]
    keep_inputs(f"--out {out}", kept, inputs)
    if page is not None:
        check_page(page)
        keep_inputs(f"--page {page}", [page, page.with_suffix(".json")], [*inputs, *kept])
    with LateProgress("comparing") as progress:
        found = compare(loaded, contenders, out, workers, progress, settings.seeds)
    if page is not None:
        write_comparison(found, page, settings.command(scenarios, page))
    if json_:
        typer.echo(comparison_json(found))
        return
    for each in found:
        print_comparison(each, console)
