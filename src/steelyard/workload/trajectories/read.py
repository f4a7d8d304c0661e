"""Trajectory files (docs/trajectories.md): our own JSON lines, SWE-agent's turns, recorded agent sessions, live logs.

The form is recognised line by line: ``kind`` marks an event of a log, ``calls`` a session, anything else has turns.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from steelyard.errors import UserError
from steelyard.files.jsontext import json_lines, required
from steelyard.records import Trajectory, Turn
from steelyard.workload.traces.lines import seconds, tokens
from steelyard.workload.trajectories.events import EventReader
from steelyard.workload.trajectories.rows import name_of, turns_of


def read_trajectories(path: Path, limit: int | None = None) -> list[Trajectory]:
    """The trajectories of a file (the first ``limit`` of them), in its order, gzipped or not."""
    found: list[Trajectory] = []
    lines: dict[str, str] = {}
    log = EventReader()
    for where, row in json_lines(path, None):
        if len(found) == limit:
            break
        if "log" in row:  # the header of a log
            continue
        event = "kind" in row and ("trajectory" in row or "turns" not in row)
        each = log.take(row, where) if event else _row(row, where)
        if each is None:
            continue
        first = lines.setdefault(each.id, where)
        if first != where:
            raise UserError(f"{where}: id {each.id!r} is taken by {first}; every trajectory needs its own")
        found.append(each)
    if not found:
        raise UserError(f"{path}: holds no trajectories; it should have one JSON object a line, with task and turns")
    return found


def _row(row: dict[str, Any], where: str) -> Trajectory:
    return _session(row, where) if "calls" in row else _trajectory(row, where)


def _trajectory(row: dict[str, Any], where: str) -> Trajectory:
    """A row with turns. Without an id its line number is its name."""
    turns = turns_of(required(row, "turns", where), where)
    if not turns:
        raise UserError(f"{where}: turns must be a list of at least one turn (found none)")
    own = name_of(row, "id", where) or f"line-{where.rpartition(':')[2]}"
    prompt = name_of(row, "prompt", where)
    task = name_of(row, "task", where) or prompt
    if task is None:
        raise UserError(f"{where}: task is missing; give task, or prompt where each prompt is a task of its own")
    return Trajectory(
        id=own,
        prompt=prompt or task,
        task=task,
        turns=tuple(turns),
        prompt_tokens=tokens(row.get("prompt_tokens", 0), "prompt_tokens", where),
        policy=name_of(row, "policy", where),
        end=name_of(row, "end" if "end" in row else "exit", where),
    )


def _session(row: dict[str, Any], where: str) -> Trajectory:
    """Recorded calls in the order they were made. What a tool returned is the growth of the next prompt.

    Calls do not name the tool between them, so all tools are ``call``. What the next prompt has beyond this one's
    prompt and output counts as returned; if the next prompt is shorter (calls overlap, contexts are cut), nothing does.
    """
    calls = row["calls"]
    if not isinstance(calls, list) or not calls:
        raise UserError(f"{where}: calls must be a list of at least one call (found {str(calls)[:40]!r})")
    rows = sorted(_call(each, f"{where}: calls[{number}]") for number, each in enumerate(calls))
    turns = [
        Turn(generated=output, tool="call", returned=max(0, following[1] - prompt - output))
        for (_, prompt, output), following in pairwise(rows)
    ]
    own = name_of(row, "session", where) or f"line-{where.rpartition(':')[2]}"
    return Trajectory(
        id=own,
        prompt=own,
        task=own,
        turns=(*turns, Turn(generated=rows[-1][2])),
        prompt_tokens=rows[0][1],
        policy=name_of(row, "agent", where),
    )


def _call(row: Any, where: str) -> tuple[float, int, int]:
    if not isinstance(row, list) or len(row) != 3:
        raise UserError(f"{where}: must be [microseconds, prompt tokens, output tokens] (found {str(row)[:40]!r})")
    at, prompt, output = row
    return (
        seconds(at, "time", where),
        tokens(prompt, "prompt tokens", where),
        tokens(output, "output tokens", where),
    )
