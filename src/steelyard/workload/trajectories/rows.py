"""Shared by the readers of all forms of trajectory files."""

from __future__ import annotations

from typing import Any

from steelyard.errors import UserError, did_you_mean
from steelyard.files.jsontext import required
from steelyard.records import OUTCOMES, Outcome, Turn
from steelyard.workload.traces.lines import seconds, tokens


def turns_of(rows: Any, where: str) -> list[Turn]:
    """The turns of a row."""
    if not isinstance(rows, list):
        raise UserError(f"{where}: turns must be a list (found {str(rows)[:40]!r})")
    return [turn_of(each, f"{where}: turns[{number}]") for number, each in enumerate(rows)]


def turn_of(row: Any, where: str) -> Turn:
    """A turn of a row."""
    if not isinstance(row, dict):
        raise UserError(f"{where}: must be an object with generated, tool, outcome, returned (found {str(row)[:40]!r})")
    latency = row.get("latency")
    return Turn(
        generated=tokens(required(row, "generated", where), "generated", where),
        tool=name_of(row, "tool", where),
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


def name_of(row: dict[str, Any], key: str, where: str) -> str | None:
    """Text under a key that may be absent or null; numbers are accepted as names."""
    value = row.get(key)
    if value is None or (isinstance(value, str) and value):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise UserError(f"{where}: {key} must be text, not empty (found {value!r})")
