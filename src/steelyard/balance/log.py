"""Logs of the core as JSON lines: each event that a part of it was told, then the commands that this led to.

Numbers are read back bit for bit, so whoever replays a log's events gets its commands again, to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, Protocol, TextIO, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from steelyard.balance.admission import AdmissionCommand, AdmissionEvent
from steelyard.balance.commands import RolloutCommand
from steelyard.balance.events import RolloutEvent
from steelyard.balance.plan.asked import Asked
from steelyard.balance.plan.world import Plan
from steelyard.balance.pool import PoolCommand, PoolEvent
from steelyard.balance.tail import TailCommand, TailEvent
from steelyard.errors import UserError, did_you_mean
from steelyard.records.lines import json_lines, required

Part = Literal["rollout", "tail", "admission", "pool", "planner"]
Event = RolloutEvent | TailEvent | AdmissionEvent | PoolEvent | Asked
Command = RolloutCommand | TailCommand | AdmissionCommand | PoolCommand | Plan
Entry = Event | Command
Told = tuple[Part, Entry]
"""Who was told an event, or gave a command. Some events several parts are told of, each for itself."""

_E = TypeVar("_E", bound=Event)
_C = TypeVar("_C", bound=Command)

_PARTS: tuple[Part, ...] = get_args(Part)
_EVENTS: tuple[type, ...] = get_args(Event)
_KINDS: dict[str, type] = {kind.__name__: kind for kind in (*_EVENTS, *get_args(Command))}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(kind) for name, kind in _KINDS.items()}


class Decider(Protocol):
    """A part of the core."""

    def decide(self, event: Any) -> Sequence[Entry]:
        """Take an event in; commands."""


class Journal:
    """Writes a log as things happen."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def note(self, part: Part, event: Event, commands: Iterable[Command]) -> None:
        """An event, and what came of it."""
        for entry in (event, *commands):
            self._file.write(to_line(part, entry) + "\n")


def noted(journal: Journal | None, part: Part, decide: Callable[[_E], list[_C]]) -> Callable[[_E], list[_C]]:
    """What a part decides, written down as it does if there is a journal."""
    if journal is None:
        return decide

    def told(event: _E) -> list[_C]:
        commands = decide(event)
        journal.note(part, event, commands)
        return commands

    return told


def to_line(part: Part, entry: Entry) -> str:
    """An entry as JSON: its part unless that is the rollout's, its kind, then its fields in their order."""
    said = {} if part == "rollout" else {"part": part}
    return json.dumps({**said, "kind": type(entry).__name__, **asdict(entry)}, separators=(",", ":"))


def write_log(path: Path, entries: Iterable[Told]) -> None:
    """Write entries in their order, a line each."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(to_line(part, entry) + "\n" for part, entry in entries)


def read_log(path: Path) -> list[Told]:
    """All entries of a log, gzipped or not."""
    return [_told(row, where) for where, row in json_lines(path, None)]


def replay(entries: Iterable[Told], parts: Mapping[Part, Decider]) -> Iterator[Told]:
    """Each event of these parts as they take it in, followed by their commands, whatever commands the log has."""
    for part, entry in entries:
        if part in parts and isinstance(entry, _EVENTS):
            yield part, entry
            yield from ((part, command) for command in parts[part].decide(entry))


def _told(row: dict[str, Any], where: str) -> Told:
    part = row.get("part", "rollout")
    for known in _PARTS:
        if part == known:
            return known, _entry({key: value for key, value in row.items() if key != "part"}, where)
    raise UserError(f"{where}: part is {part!r}; {did_you_mean(str(part), _PARTS)}")


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
