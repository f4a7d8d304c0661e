"""``steelyard posttrain``"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from steelyard import __version__
from steelyard.balance.log import Journal
from steelyard.cli.checks import checking
from steelyard.cli.console import LateProgress, say
from steelyard.cli.console import out as console
from steelyard.cli.options import Check, Out, Overwrite, Posttrain, Set, Summary
from steelyard.cli.outputs import keep_scenario
from steelyard.files.writing import written_text
from steelyard.posttrain.check import check_posttrain
from steelyard.posttrain.run import posttrain
from steelyard.report.folder import PAGE, OutputFolder
from steelyard.report.posttrain import print_posttrain, timeline_svg
from steelyard.report.posttrain_page import posttrain_page
from steelyard.scenario import load_posttrain

TIMELINE = "timeline.svg"


def command(
    scenario: Posttrain,
    out: Out = None,
    overwrite: Overwrite = False,
    set_: Set = None,
    json_: Summary = False,
    log: Annotated[
        bool, typer.Option("--log", help="Also write events.jsonl: the events and commands of the decision core.")
    ] = False,
    check: Check = False,
) -> None:
    """Simulate RL post-training: rollouts with tools, training and weight sync, step after step."""
    loaded = load_posttrain(scenario, set_ or [])
    keep_scenario(out, scenario, loaded)
    output = OutputFolder(out, loaded.name, overwrite)
    with output.stage() as stage:
        with LateProgress("training steps") as progress, _journal(stage if log else None) as journal:
            result = posttrain(loaded, progress, journal)
        result.write(stage)
        for name, content in ((TIMELINE, timeline_svg(result)), (PAGE, posttrain_page(result))):
            with written_text(stage / name) as file:
                file.write(content)
    if json_:
        typer.echo(result.summary_json(), nl=False)
    else:
        print_posttrain(result.summary, console)
        say(f"written to {output.path}")
    if check:
        with checking():
            check_posttrain(result)


@contextmanager
def _journal(folder: Path | None) -> Iterator[Journal | None]:
    """The log of the decision core, if it is wanted."""
    if folder is None:
        yield None
        return
    with written_text(folder / "events.jsonl") as file:
        yield Journal(file, __version__)
