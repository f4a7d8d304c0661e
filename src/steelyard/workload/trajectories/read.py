"""Trajectory files (docs/trajectories.md): our own JSON lines, SWE-agent's turns, and recorded agent sessions.

The three are told apart line by line: ``calls`` makes a session, ``id`` one of our own, anything else SWE-agent's.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from steelyard.errors import UserError, did_you_mean
from steelyard.workload.traces.lines import json_lines, required, seconds, tokens
from steelyard.workload.trajectories.records import OUTCOMES, Outcome, Trajectory, Turn


def read_trajectories(path: Path, limit: int | None = None) -> list[Trajectory]:
    """The trajectories of a file (the first ``limit`` of them), in its order, gzipped or not."""
    found: list[Trajectory] = []
    lines: dict[str, str] = {}
    for where, row in json_lines(path, limit):
        each = _session(row, where) if "calls" in row else _trajectory(row, where)
        first = lines.setdefault(each.id, where)
        if first != where:
            raise UserError(f"{where}: id {each.id!r} is taken by {first}; every trajectory needs its own")
        found.append(each)
    if not found:
        raise UserError(f"{path}: holds no trajectories; it should have one JSON object a line, with task and turns")
    return found


def _trajectory(row: dict[str, Any], where: str) -> Trajectory:
    """A row with turns. Without an id the line names it, so that the name says nothing about who made it."""
    rows = required(row, "turns", where)
    if not isinstance(rows, list) or not rows:
        raise UserError(f"{where}: turns must be a list of at least one turn (found {str(rows)[:40]!r})")
    own = _name(row, "id", where) or f"line-{where.rpartition(':')[2]}"
    prompt = _name(row, "prompt", where)
    task = _name(row, "task", where) or prompt
    if task is None:
        raise UserError(f"{where}: task is missing; give task, or prompt where each prompt is a task of its own")
    return Trajectory(
        id=own,
        prompt=prompt or task,
        task=task,
        turns=tuple(_turn(each, f"{where}: turns[{number}]") for number, each in enumerate(rows)),
        prompt_tokens=tokens(row.get("prompt_tokens", 0), "prompt_tokens", where),
        policy=_name(row, "policy", where),
        end=_name(row, "end" if "end" in row else "exit", where),
    )


def _turn(row: Any, where: str) -> Turn:
    if not isinstance(row, dict):
        raise UserError(f"{where}: must be an object with generated, tool, outcome, returned (found {str(row)[:40]!r})")
    latency = row.get("latency")
    return Turn(
        generated=tokens(required(row, "generated", where), "generated", where),
        tool=_name(row, "tool", where),
        outcome=_outcome(row, "outcome" if "outcome" in row else "status", where),
        returned=tokens(row.get("returned", 0), "returned", where),
        latency=None if latency is None else seconds(latency, "latency", where),
    )


def _outcome(row: dict[str, Any], key: str, where: str) -> Outcome:
    value = row.get(key, "ok")
    for known in OUTCOMES:
        if value == known:
            return known
    raise UserError(f"{where}: {key} is {value!r}; {did_you_mean(str(value), OUTCOMES)}")


def _name(row: dict[str, Any], key: str, where: str) -> str | None:
    """Text under a key that may be absent or null; numbers serve as names too."""
    value = row.get(key)
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise UserError(f"{where}: {key} must be text, not empty (found {value!r})")


def _session(row: dict[str, Any], where: str) -> Trajectory:
    """Recorded calls in the order they were made. What a tool returned is how much longer the next prompt is.

    Calls do not say which tool came between them, so all are ``call``; whatever the next prompt has beyond this one's
    prompt and answer counts as returned, and a prompt that is shorter (calls overlap, contexts are cut) as nothing.
    """
    calls = row["calls"]
    if not isinstance(calls, list) or not calls:
        raise UserError(f"{where}: calls must be a list of at least one call (found {str(calls)[:40]!r})")
    rows = sorted(_call(each, f"{where}: calls[{number}]") for number, each in enumerate(calls))
    turns = [
        Turn(generated=output, tool="call", returned=max(0, following[1] - prompt - output))
        for (_, prompt, output), following in pairwise(rows)
    ]
    own = _name(row, "session", where) or f"line-{where.rpartition(':')[2]}"
    return Trajectory(
        id=own,
        prompt=own,
        task=own,
        turns=(*turns, Turn(generated=rows[-1][2])),
        prompt_tokens=rows[0][1],
        policy=_name(row, "agent", where),
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
