"""Logs of a rollout as JSON lines: each event, then the commands it led to. Numbers are read back bit for bit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from steelyard.balance.commands import RolloutCommand
from steelyard.balance.core import RolloutCore
from steelyard.balance.events import RolloutEvent
from steelyard.errors import UserError, did_you_mean
from steelyard.workload.traces.lines import json_lines, required

Entry = RolloutEvent | RolloutCommand

_KINDS: dict[str, type] = {kind.__name__: kind for kind in (*get_args(RolloutEvent), *get_args(RolloutCommand))}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in _KINDS.items()}


def to_line(entry: Entry) -> str:
    """An entry as JSON: its kind, then its fields in their order."""
    return json.dumps({"kind": type(entry).__name__, **asdict(entry)}, separators=(",", ":"))


def write_log(path: Path, entries: Iterable[Entry]) -> None:
    """Write entries in their order, a line each."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(to_line(entry) + "\n" for entry in entries)


def read_log(path: Path) -> list[Entry]:
    """All entries of a log, gzipped or not."""
    return [_entry(row, where) for where, row in json_lines(path, None)]


def record(events: Iterable[RolloutEvent], core: RolloutCore) -> Iterator[Entry]:
    """Each event as the core takes it in, followed by the commands it led to."""
    for event in events:
        yield event
        yield from core.decide(event)


def replay(entries: Iterable[Entry], core: RolloutCore) -> list[RolloutCommand]:
    """The commands that a core gives to a log's events, whatever commands the log has."""
    events = (entry for entry in entries if isinstance(entry, RolloutEvent))
    return [command for event in events for command in core.decide(event)]


def _entry(row: dict[str, Any], where: str) -> Entry:
    kind = required(row, "kind", where)
    if not isinstance(kind, str) or kind not in _KINDS:
        raise UserError(f"{where}: kind is {kind!r}; {did_you_mean(str(kind), _KINDS)}")
    rest = {key: value for key, value in row.items() if key != "kind"}
    known = [field.name for field in fields(_KINDS[kind])]
    for key in rest:
        if key not in known:
            raise UserError(f"{where}: {kind} has no {key!r}; {did_you_mean(key, known)}")
    try:
        entry: Entry = _ADAPTERS[kind].validate_json(json.dumps(rest), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(f"{where}: {kind}: {key}: {first['msg']} (found {first['input']!r})") from None
    return entry
