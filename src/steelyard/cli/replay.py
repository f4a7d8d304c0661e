"""``steelyard replay``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress, say
from steelyard.live.store import is_store, log_rows
from steelyard.posttrain.replay import ReplayVerdict, replay_log, replay_rows


def command(
    log: Annotated[
        Path,
        typer.Argument(help="Log of the decision core: events.jsonl of `posttrain --log`, or a controller's store."),
    ],
) -> None:
    """Decide every event of a log again and compare the commands, byte for byte."""
    with LateProgress("replaying") as progress:
        verdict = replay_rows(log_rows(log), log, progress) if is_store(log) else replay_log(log, progress)
    say(said(verdict))
    raise typer.Exit(0 if verdict.difference is None else 1)


def said(verdict: ReplayVerdict) -> str:
    """A verdict for the console."""
    lines = [f"{verdict.events:,} events, {verdict.commands:,} commands"]
    if verdict.dropped:
        lines.append(
            "dropped: " + ", ".join(f"{count:,} {reason}" for reason, count in sorted(verdict.dropped.items()))
        )
    different = verdict.difference
    if different is not None:
        lines += [f"{different.where}: decided otherwise", f"  event:   {different.event}"]
        lines += [f"  logged:  {each}" for each in different.logged or ("nothing",)]
        lines += [f"  decided: {each}" for each in different.decided or ("nothing",)]
    elif verdict.cut:
        lines.append("identical; the log ends before all commands of its last event were written")
    else:
        lines.append("identical")
    return "\n".join(lines)
