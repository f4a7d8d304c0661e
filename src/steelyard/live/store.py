"""The controller's memory on disk: what was reported, and what was done about it.

One SQLite file in WAL mode. A transaction is on disk before it returns (``synchronous=FULL``), so events are durable
before they are decided. Commands are written after they were carried out, together with the next events: events without
them are decided again after a crash.

A store has one writer at a time. Opening it as controller gives the next *fence*, a number that rises with every
opening. Each transaction checks it: a controller that was replaced, and does not know yet, can write no more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, Literal, get_args

from steelyard.balance.inbox import Envelope
from steelyard.balance.kinds import Command
from steelyard.balance.log import SCHEMA, Header, Row, command_line, event_line, header_line
from steelyard.balance.settings import CoreSettings
from steelyard.errors import UserError
from steelyard.files.finding import is_file, is_there
from steelyard.files.jsontext import json_row
from steelyard.files.reading import opened
from steelyard.files.writing import check_target
from steelyard.live.checkpoints import LATEST

_TABLES = """
CREATE TABLE header (line TEXT NOT NULL);
CREATE TABLE fence (number INTEGER NOT NULL, carried_out INTEGER NOT NULL);
CREATE TABLE events (place INTEGER PRIMARY KEY, line TEXT NOT NULL);
CREATE TABLE commands (event INTEGER, place INTEGER, line TEXT NOT NULL, PRIMARY KEY (event, place)) WITHOUT ROWID;
CREATE TABLE snapshots (events INTEGER PRIMARY KEY, state BLOB NOT NULL);
CREATE TABLE members (name TEXT PRIMARY KEY, reports INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO fence VALUES (0, 0);
"""
KeptKind = Literal["Start", "TrainOn", "Cap"]
"""Commands that members are told of long after they were given."""
_KIND = "json_extract(line, '$.kind')"
_KEPT = f"{_KIND} IN ({', '.join(map(repr, get_args(KeptKind)))})"
_INDEX = f"CREATE INDEX IF NOT EXISTS kept ON commands ({_KIND}, event, place) WHERE {_KEPT}"
_MAGIC = b"SQLite format 3\0"
_WAIT_SECONDS = 10.0  # for another process to end its transaction
_KEPT_SNAPSHOTS = 2
_REPLACED = "another controller has taken over this run"
_READ_EVENTS = 1000  # that readers of a log take at a time; chosen
_READ_COMMANDS = 100  # that are read at a time; chosen
_WAL_BYTE = 18  # of a database's header


class Fenced(RuntimeError):
    """Another controller has taken over. This one must do nothing more."""


class StoreFailure(UserError):
    """The store cannot be written. Nothing more may be decided."""


class Store:
    """One controller's view of the file. Places of events count from 0."""

    def __init__(self, path: Path, settings: CoreSettings | None = None, shared: bool = False) -> None:
        """Open the store of a run, or begin one with ``settings``. Takes over from any other controller, on this
        machine or, with ``shared``, on others."""
        self._path = path
        self._db = _connect(path, settings is not None, shared)
        self._one_at_a_time = Lock()  # events are written by a thread of their own
        with self._transaction(check=False):
            if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'fence'").fetchone():
                assert settings is not None
                for statement in _TABLES.split(";\n"):
                    self._db.execute(statement)
                line = header_line(Header(SCHEMA, version("steelyard"), settings))
                self._db.execute("INSERT INTO header VALUES (?)", (line,))
            self._db.execute(_INDEX)
            self._db.execute("UPDATE fence SET number = number + 1")
            self.fence = self._number("SELECT number FROM fence")
        self.events = self._number("SELECT COALESCE(MAX(place) + 1, 0) FROM events")
        self.carried_out = self._number("SELECT carried_out FROM fence")  # events whose commands were written

    def check(self) -> None:
        """Raise `Fenced` if another controller has taken over."""
        if self._read("SELECT number FROM fence")[0][0] != self.fence:
            raise Fenced(_REPLACED)

    def close(self) -> None:
        """Close the file, once a thread that writes to it is through."""
        with self._one_at_a_time:
            self._db.close()

    def _read(self, query: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        with self._one_at_a_time:
            return self._db.execute(query, values).fetchall()

    @property
    def header(self) -> str:
        """The first line of the log."""
        return str(self._read("SELECT line FROM header")[0][0])

    def append(
        self,
        envelopes: Sequence[Envelope],
        carried_out: Sequence[Sequence[Command]] = (),
        reports: Mapping[str, int] | None = None,
    ) -> None:
        """Write events that are about to be decided, and commands of the events before them. ``reports`` says which
        report of each member was the last."""
        rows = [(self.events + index, event_line(each)) for index, each in enumerate(envelopes)]
        with self._transaction():
            if carried_out:
                self._db.executemany("INSERT INTO commands VALUES (?, ?, ?)", self._lines(carried_out))
                self._db.execute("UPDATE fence SET carried_out = ?", (self.carried_out + len(carried_out),))
            self._db.executemany("INSERT INTO events VALUES (?, ?)", rows)
            if reports:
                self._db.executemany("INSERT OR REPLACE INTO members VALUES (?, ?)", reports.items())
        self.events += len(rows)
        self.carried_out += len(carried_out)

    def _lines(self, carried_out: Sequence[Sequence[Command]]) -> Iterator[tuple[int, int, str]]:
        for event, commands in enumerate(carried_out, self.carried_out):
            for place, command in enumerate(commands):
                yield event, place, command_line(command)

    def reports(self) -> dict[str, int]:
        """The last report of each member that was written."""
        return {str(name): int(number) for name, number in self._read("SELECT name, reports FROM members")}

    def last_second(self) -> float:
        """The second of the last event; 0 without one."""
        found = self._read("SELECT line FROM events ORDER BY place DESC LIMIT 1")
        return float(json_row(found[0][0], "store")["at"]) if found else 0.0

    def keep(self, name: str, value: str) -> None:
        """Write a fact about the run that is in no event. It is on disk when this returns."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def fact(self, name: str) -> str | None:
        """A fact that was written, if it was."""
        found = self._read("SELECT value FROM facts WHERE name = ?", (name,))
        return str(found[0][0]) if found else None

    def commands(self, after: tuple[int, int] | None = None) -> list[tuple[int, int, str]]:
        """Commands that were written, in order, after one of them."""
        event, place = (-1, -1) if after is None else after
        query = "SELECT event, place, line FROM commands WHERE (event, place) > (?, ?) ORDER BY event, place"
        return [(event, place, line) for event, place, line in self._read(query, (event, place))]

    def newest_first(self, kind: KeptKind) -> Iterator[str]:
        """Commands of a kind that were written, the last one first. Only as many are read as are wanted."""
        before = (1 << 62, 0)
        query = (
            f"SELECT event, place, line FROM commands WHERE {_KEPT} AND {_KIND} = ? AND (event, place) < (?, ?) "
            f"ORDER BY event DESC, place DESC LIMIT {_READ_COMMANDS}"
        )
        while rows := self._read(query, (kind, *before)):
            yield from (line for _, _, line in rows)
            before = rows[-1][0], rows[-1][1]

    def save(self, state: bytes) -> None:
        """Keep a snapshot of the core after all events so far."""
        with self._transaction():
            self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (self.events, state))
            self._db.execute(
                "DELETE FROM snapshots WHERE events NOT IN (SELECT events FROM snapshots ORDER BY events DESC LIMIT ?)",
                (_KEPT_SNAPSHOTS,),
            )

    def snapshot(self) -> tuple[int, bytes] | None:
        """The newest snapshot, and the number of events before it."""
        found = self._read("SELECT events, state FROM snapshots ORDER BY events DESC LIMIT 1")
        return (int(found[0][0]), bytes(found[0][1])) if found else None

    def rows(self, first: int = 0) -> Iterator[tuple[int, str, list[str]]]:
        """Events from ``first`` on, each with its commands that were written."""
        for place, line in self._read("SELECT place, line FROM events WHERE place >= ? ORDER BY place", (first,)):
            commands = self._read("SELECT line FROM commands WHERE event = ? ORDER BY place", (place,))
            yield place, line, [row[0] for row in commands]

    @contextmanager
    def _transaction(self, check: bool = True) -> Iterator[None]:
        with self._one_at_a_time:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                if check and self._number("SELECT number FROM fence") != self.fence:
                    raise Fenced(_REPLACED)
                yield
                self._db.execute("COMMIT")
            except sqlite3.OperationalError as problem:
                self._roll_back()
                raise StoreFailure(
                    f"{self._path}: the log cannot be written ({problem}), so nothing is decided; "
                    "is there room on its disk?"
                ) from None
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            with suppress(sqlite3.Error):  # the file is as it was, whatever this says
                self._db.execute("ROLLBACK")

    def _number(self, query: str) -> int:
        found: int = self._db.execute(query).fetchone()[0]
        return found


def _is_wal(path: Path) -> bool:
    """Whether a database is in WAL mode, by its header."""
    with opened(path) as file:
        return file.read(_WAL_BYTE + 1)[_WAL_BYTE:] == b"\2"


def is_store(path: Path) -> bool:
    """Whether a file is a controller's store, and not lines of a log."""
    with opened(path) as file:
        return file.read(len(_MAGIC)) == _MAGIC


def log_rows(path: Path, more: Callable[[], bool] = lambda: False) -> Iterator[Row]:
    """A store as rows of a log. At its end ``more`` waits for others, and says whether to go on."""
    for number, line in enumerate(log_lines(path, more), 1):
        where = f"{path}: row {number}"
        if not isinstance(line, str):  # SQLite keeps whatever a damaged file says
            raise UserError(f"{where}: not text; the store is damaged")
        yield where, json_row(line, where)


def log_lines(path: Path, more: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """A store as lines of a log, up to the last event whose commands were carried out. Does not take over."""
    db = _connect_to_read(path)
    first = 0
    try:
        yield db.execute("SELECT line FROM header").fetchone()[0]
        while True:
            until = db.execute("SELECT carried_out FROM fence").fetchone()[0]
            while first < until:
                last = min(until, first + _READ_EVENTS)
                yield from _lines_between(db, first, last)
                first = last
            if not more():
                return
    except (sqlite3.DatabaseError, TypeError) as problem:
        raise UserError(f"{path}: not a store of a controller: {problem}") from None
    finally:
        db.close()


def _lines_between(db: sqlite3.Connection, first: int, until: int) -> list[Any]:
    """Some events with their commands. So few at a time that a controller never waits long for readers."""
    query = (
        "SELECT place, -1, line FROM events WHERE place >= ? AND place < ? "
        "UNION ALL SELECT event, place, line FROM commands WHERE event >= ? AND event < ? ORDER BY 1, 2"
    )
    return [line for _, _, line in db.execute(query, (first, until, first, until)).fetchall()]


def stored_fact(path: Path, name: str) -> str | None:
    """A fact of a controller's store, if it has it. Does not take over."""
    db = _connect_to_read(path)
    try:
        found = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    except sqlite3.DatabaseError as problem:
        raise UserError(f"{path}: not a store of a controller: {problem}") from None
    finally:
        db.close()
    return None if found is None else str(found[0])


def _connect(path: Path, create: bool, shared: bool) -> sqlite3.Connection:
    if not create and not is_file(path):
        raise UserError(f"{path}: no such file; give the store of a controller")
    check_target(path)
    try:
        db = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False)
        set_journal_mode(db, shared)
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA wal_autocheckpoint = {LATEST}")
    except sqlite3.Error as problem:
        raise UserError(f"{path}: cannot be opened as a controller's store: {problem}") from None
    return db


def set_journal_mode(db: sqlite3.Connection, shared: bool) -> None:
    """WAL is faster, but keeps its index in memory that only processes of one machine share."""
    wanted = "truncate" if shared else "wal"
    (found,) = db.execute(f"PRAGMA journal_mode = {wanted}").fetchone()
    if shared and found == "wal":
        raise sqlite3.OperationalError("it is open on another machine or in another program")


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, and leaves no files beside a store that nobody has open."""
    if not is_file(path):
        raise UserError(f"{path}: no such file; give the store of a controller")
    is_left = _is_wal(path) and not is_there(path.with_name(path.name + "-wal"))
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if is_left else ''}"
        return sqlite3.connect(uri, timeout=_WAIT_SECONDS, isolation_level=None, uri=True)
    except sqlite3.Error as problem:
        raise UserError(f"{path}: cannot be opened as a controller's store: {problem}") from None
