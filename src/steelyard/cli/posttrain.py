"""``steelyard posttrain``"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from steelyard import __version__
from steelyard.balance.log import Journal
from steelyard.cli.checks import checking
from steelyard.cli.console import LateProgress, say
from steelyard.cli.console import out as console
from steelyard.cli.options import Check, Out, Overwrite, Posttrain, Set, Summary
from steelyard.posttrain.check import check_posttrain
from steelyard.posttrain.run import posttrain
from steelyard.report.folder import choose_output_dir, write_whole
from steelyard.report.posttrain import print_posttrain, timeline_svg
from steelyard.scenario import load_posttrain


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
    folder = choose_output_dir(out, loaded.name, overwrite)
    with LateProgress("training steps") as progress, ExitStack() as files:
        journal = None
        if log:
            folder.mkdir(parents=True, exist_ok=True)
            file = files.enter_context((folder / "events.jsonl").open("w", encoding="utf-8"))
            journal = Journal(file, __version__)
        result = posttrain(loaded, progress, journal)
    text = result.summary_json()
    write_whole(folder / "timeline.svg", timeline_svg(result))
    write_whole(folder / "summary.json", text)
    if json_:
        typer.echo(text, nl=False)
    else:
        print_posttrain(result.summary, console)
        say(f"written to {folder}")
    if check:
        with checking():
            check_posttrain(result)
