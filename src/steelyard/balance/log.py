"""The core's log: a header, then each event in its envelope, then the commands that it led to, a line of JSON each.

An event is written and flushed before it is decided, so whatever a driver does is in the log first. Everything a
decision needs is in the header or in an event: a replay needs nothing else, and gives the same commands to the byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TextIO, get_args

from steelyard.balance.core import Core
from steelyard.balance.encoding import decode, decode_kind, encode
from steelyard.balance.events import ReplicaUp
from steelyard.balance.inbox import Envelope
from steelyard.balance.kinds import Command, Event
from steelyard.balance.settings import CoreSettings
from steelyard.errors import UserError

SCHEMA = 1
"""Of logs. A log of another one is refused."""

_MOST_SEATS = 65_536  # of a replica: routers keep a step time for each
_EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
Row = tuple[str, dict[str, Any]]
"""Where a line stands, for messages, and its object."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a log begins with: all that a core is made of."""

    schema: int
    package: str
    settings: CoreSettings


class Journal:
    """Writes a log as things happen."""

    def __init__(self, file: TextIO, package: str = "") -> None:
        self._file = file
        self._package = package

    def begin(self, settings: CoreSettings) -> None:
        """The header."""
        self._file.write(header_line(Header(SCHEMA, self._package, settings)) + "\n")
        self._file.flush()

    def event(self, envelope: Envelope) -> None:
        """An event that is about to be decided."""
        self._file.write(event_line(envelope) + "\n")
        self._file.flush()

    def commands(self, commands: Iterable[Command]) -> None:
        """What it led to."""
        self._file.writelines(command_line(command) + "\n" for command in commands)


def header_line(header: Header) -> str:
    """The first line."""
    return _json({"log": "steelyard", **encode(header)})


def event_line(envelope: Envelope) -> str:
    """An event with its identity."""
    return _json({"id": [envelope.epoch, envelope.seq], **encode(envelope.event, kind=True)})


def command_line(command: Command) -> str:
    """A command: the lines after an event that have no identity of their own."""
    return _json(encode(command, kind=True))


def _json(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"), allow_nan=False)


def _logged(row: dict[str, Any], where: str) -> str:
    """A line of a log as it was written."""
    try:
        return _json(row)
    except ValueError:
        raise UserError(f"{where}: a number that is not finite; logs have none") from None


def read_header(row: dict[str, Any], where: str) -> Header:
    """The first line of a log, understood."""
    if row.get("log") != "steelyard":
        raise UserError(f'{where}: not a log of the decision core: its first line must have "log": "steelyard"')
    if row.get("schema") != SCHEMA:
        raise UserError(f"{where}: schema is {row.get('schema')!r}; this version reads logs of schema {SCHEMA}")
    header = decode(Header, {key: value for key, value in row.items() if key != "log"}, where)
    assert isinstance(header, Header)
    return header


def is_event(row: dict[str, Any]) -> bool:
    """Whether a line is an event; commands have no identity of their own."""
    return "id" in row


def read_event(row: dict[str, Any], where: str) -> Envelope:
    """A line of an event, understood."""
    match row["id"]:
        case [int(epoch), int(seq)]:
            event = decode_kind(_EVENTS, {key: value for key, value in row.items() if key != "id"}, where)
            if isinstance(event, ReplicaUp) and not 0 < event.seats <= _MOST_SEATS:
                raise UserError(f"{where}: seats must be from 1 to {_MOST_SEATS:,} (found {event.seats})")
            return Envelope(epoch, seq, event)
    raise UserError(f"{where}: id must be two whole numbers, epoch and place (found {str(row['id'])[:40]})")


@dataclass(frozen=True, slots=True)
class Replayed:
    """An event of a log, the commands that it led to then, and those that it leads to now."""

    where: str
    event: str
    logged: tuple[str, ...]
    decided: tuple[str, ...]


def replay(rows: Iterable[Row], core: Core) -> Iterator[Replayed]:
    """Have a core decide each event of a log again; ``rows`` are those after the header."""
    for (where, row), logged in _by_event(rows):
        envelope = read_event(row, where)
        event = _logged(row, where)
        decided = tuple(command_line(command) for command in core.decide(envelope))
        yield Replayed(where, event, tuple(logged), decided)


def _by_event(rows: Iterable[Row]) -> Iterator[tuple[Row, Sequence[str]]]:
    """Each event with the lines of its commands."""
    event: Row | None = None
    commands: list[str] = []
    for where, row in rows:
        if not is_event(row):
            commands.append(_logged(row, where))
            continue
        if event is not None:
            yield event, commands
        event, commands = (where, row), []
    if event is not None:
        yield event, commands
