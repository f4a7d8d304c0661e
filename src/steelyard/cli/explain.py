"""``steelyard explain``"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import say
from steelyard.cli.outputs import keep_inputs
from steelyard.errors import UserError, quoted
from steelyard.files.writing import check_file
from steelyard.live.explain import Explained, explanations, log_of
from steelyard.live.timeline import write_timeline
from steelyard.posttrain.history import DecidedLog
from steelyard.quoting import printable

_MOST_LAST = 1_000_000  # sentences that are kept; chosen


def command(
    log: Annotated[
        Path,
        typer.Argument(help="Log of the decision core: events.jsonl of `posttrain --log`, or a controller's store."),
    ],
    trajectory: Annotated[str | None, typer.Option(help="Only what concerns the trajectory of this name.")] = None,
    step: Annotated[int | None, typer.Option(help="Only what concerns this training step and its samples.")] = None,
    last: Annotated[int | None, typer.Option(min=1, max=_MOST_LAST, help="Only the last so many sentences.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print a JSON object a line instead of text.")] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Write a timeline for Perfetto to this file, and no sentences.")
    ] = None,
) -> None:
    """Say in plain sentences what a log's decision core decided, and why."""
    if timeline is not None:
        if json_ or trajectory is not None or step is not None or last is not None:
            raise UserError("--timeline: shows the whole log; leave out --trajectory, --step, --last and --json")
        check_file(timeline)
        keep_inputs(f"--timeline {timeline}", [timeline], [log])
        write_timeline(DecidedLog(log_of(log), str(log)), timeline)
        say(f"written to {timeline}")
        return
    found = False
    for each in _last(_wanted(explanations(log_of(log), str(log)), trajectory, step), last):
        found = True
        typer.echo(_line(each) if json_ else printable(f"{each.at:,.1f} s: {each.sentence}"))
    if not found and trajectory is not None:
        raise UserError(f"{log}: says nothing of a trajectory {quoted(trajectory)}")
    if not found and step is not None:
        raise UserError(f"{log}: says nothing of step {step}")


def _wanted(told: Iterator[Explained], trajectory: str | None, step: int | None) -> Iterator[Explained]:
    for each in told:
        if (trajectory is None or each.concerns(trajectory)) and (step is None or each.step == step):
            yield each


def _last(told: Iterator[Explained], count: int | None) -> Iterable[Explained]:
    return told if count is None else deque(told, maxlen=count)


def _line(each: Explained) -> str:
    row = {"at": each.at, "kind": each.kind, "subject": each.subject, "step": each.step, "sentence": each.sentence}
    return json.dumps(row)
