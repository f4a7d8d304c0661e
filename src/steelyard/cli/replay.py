"""``steelyard replay``"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from steelyard.cli.console import LateProgress, say
from steelyard.cli.options import Set
from steelyard.errors import UserError
from steelyard.files.jsontext import parse_json
from steelyard.live.explain import log_of
from steelyard.live.store import is_store, log_rows, stored_fact
from steelyard.posttrain.history import DecidedLog
from steelyard.posttrain.replay import ReplayVerdict, replay_log, replay_rows
from steelyard.posttrain.whatif import RunSpeed, WhatIf, what_if
from steelyard.scenario import PosttrainScenario, load_posttrain, posttrain_from_dict
from steelyard.scenario.overrides import apply_overrides, parse_override


def command(
    log: Annotated[
        Path,
        typer.Argument(help="Log of the decision core: events.jsonl of `posttrain --log`, or a controller's store."),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option("--what-if", help="Simulate the log's trajectories with another policy, such as router=c-mlfq."),
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option(help="The run's scenario, for --what-if. A controller's store has it.")
    ] = None,
    set_: Set = None,
) -> None:
    """Decide every event of a log again and compare the commands, byte for byte.

    With --what-if, simulate its trajectories instead: as they were run, and with something changed.
    """
    if changes:
        with LateProgress("training steps") as progress:
            run = _scenario(log, scenario, set_ or [])
            say(compared(what_if(DecidedLog(log_of(log), str(log)), run, changes, progress)))
        return
    if scenario is not None or set_:
        raise UserError("--scenario, --set: are for --what-if; say what to change, such as --what-if router=c-mlfq")
    with LateProgress("replaying") as progress:
        verdict = replay_rows(log_rows(log), log, progress) if is_store(log) else replay_log(log, progress)
    say(said(verdict))
    raise typer.Exit(0 if verdict.difference is None else 1)


def _scenario(log: Path, path: Path | None, overrides: Sequence[str]) -> PosttrainScenario:
    """The scenario of a run: a file, or what its store says."""
    if path is not None:
        return load_posttrain(path, overrides)
    text = stored_fact(log, "scenario") if is_store(log) else None
    if text is None:
        raise UserError(f"{log}: does not have the run's scenario; give it with --scenario FILE")
    where = f"{log}: scenario"
    data = parse_json(text, where)
    if not isinstance(data, dict):
        raise UserError(f"{where}: must be a JSON object; give a scenario with --scenario FILE")
    return posttrain_from_dict(apply_overrides(data, [parse_override(each) for each in overrides]), where)


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


def compared(found: WhatIf) -> str:
    """What was recorded, simulated, and gained, for the console."""
    rows = {
        "recorded": found.recorded,
        "simulated, as it was": found.as_was,
        f"simulated, {', '.join(found.changes)}": found.changed,
    }
    width = max(map(len, rows))
    lines = [
        f"{found.recorded.steps:,} training steps, {found.samples:,} samples",
        f"{'':{width}} {'seconds':>12} {'a step':>10} {'tokens/s':>12}",
        *(f"{name:{width}} {_figures(speed)}" for name, speed in rows.items()),
        f"gain: {found.gain:+.1%} tokens/s, {found.as_was.seconds - found.changed.seconds:,.1f} s; "
        "simulated against simulated",
        f"the model's error: {found.error:+.2%} seconds, simulated as it was against recorded",
    ]
    if abs(found.error) > abs(found.gain):
        lines.append("the gain is smaller than the model's error")
    if found.parts:
        lines.append(f"{found.parts:,} samples did not end in the log; they go on as others did that were longer")
    if found.repeated:
        lines.append(f"{found.repeated:,} samples that the log does not have repeat those that it has")
    return "\n".join(lines)


def _figures(speed: RunSpeed) -> str:
    return f"{speed.seconds:12,.1f} {speed.step_seconds:10,.1f} {speed.tokens_per_second:12,.0f}"
