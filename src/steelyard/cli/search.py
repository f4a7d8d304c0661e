"""``steelyard search``"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import SearchProgress, err, say
from steelyard.cli.options import Figures, Set
from steelyard.cli.outputs import keep_inputs, scenario_inputs
from steelyard.deploy import emit as deployment_of
from steelyard.deploy.emit import SERVING, check_target_name
from steelyard.files.writing import write_text
from steelyard.records.jsontext import readable
from steelyard.report.search import search_figures, search_lines
from steelyard.report.search_page import search_page
from steelyard.scenario.load import load
from steelyard.scenario.search import SearchScenario
from steelyard.search.answer import Answer, answer_search
from steelyard.search.crew import check_address
from steelyard.sim.kept_scenario import SCENARIO


def command(
    scenario: Annotated[Path, typer.Argument(help="Search scenario, YAML or JSON (docs/search.md).")],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the journal, the figures and the page; runs/search-NAME if not given."),
    ] = None,
    set_: Set = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes [default: one per core].")] = None,
    ray: Annotated[
        str | None, typer.Option("--ray", help="Run on a Ray cluster: its address, or auto.", metavar="auto|ADDRESS")
    ] = None,
    sure: Annotated[
        bool, typer.Option(help="Whether to repeat the two best with other seeds and costs off by their errors.")
    ] = True,
    emit: Annotated[
        str | None,
        typer.Option(help=f"Also write what runs each level's best fleet (docs/deployable.md): {', '.join(SERVING)}."),
    ] = None,
    json_: Figures = False,
) -> None:
    """Find the fleet to buy: the best candidate within the limits, the next best, and how sure that is.

    Every simulation is kept in a journal. A search that was stopped goes on where it was.
    """
    check_address(ray)
    if emit is not None:
        check_target_name(emit)
    loaded = load(SearchScenario, scenario, set_ or [])
    folder = out or Path("runs") / f"search-{loaded.name}"
    files = [folder / name for name in ("journal.jsonl", "search.json", "search.html", SCENARIO)]
    keep_inputs(f"--out {folder}", files, scenario_inputs(scenario, loaded))
    with SearchProgress() as progress:
        answer = answer_search(loaded, journal=files[0], workers=workers, ray=ray, sure=sure, progress=progress)
    text = readable(search_figures(answer))
    kept = readable(loaded.model_dump(mode="json", exclude_unset=True))
    for path, content in zip(files[1:], (text, search_page(answer), kept), strict=True):
        write_text(path, content)
    if emit is not None:
        _deploy(answer, emit, folder)
    if json_:
        typer.echo(text, nl=False)
        return
    for line in search_lines(answer):
        say(line)
    say(f"\nfigures: {files[1]}\npage:    {files[2]}")


def _deploy(answer: Answer, target: str, folder: Path) -> None:
    """Write what runs the best fleet of each level, in a folder of its own."""
    for level in answer.levels:
        best = level.level.best
        if best is None:
            continue
        made = deployment_of(answer.found.scenario_of(best), target)
        own = folder / (f"{target}-{re.sub('[^a-z0-9_.]+', '-', level.level.name)}" if level.level.name else target)
        for name, text in made.files.items():
            write_text(own / name, text)
        err.print(f"{target}: {own}", soft_wrap=True, highlight=False)
