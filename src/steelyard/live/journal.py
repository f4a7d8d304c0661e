"""The gateway's memory: every turn that was answered, so that no answer is lost, made twice or trained on by guess.

A turn is written before its client gets it. The file survives a killed gateway; the last turns may be missing after a
power cut, and are then generated again.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from steelyard.errors import UserError
from steelyard.files.writing import check_target
from steelyard.live.checkpoints import LATEST
from steelyard.live.store import set_journal_mode

_TABLES = """
CREATE TABLE IF NOT EXISTS trajectories (
    name TEXT PRIMARY KEY, prompt_group TEXT NOT NULL, version INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL,
    fate TEXT NOT NULL DEFAULT '', reward REAL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS turns (
    name TEXT, turn INTEGER, prompt_tokens INTEGER NOT NULL, generated INTEGER NOT NULL, answer BLOB NOT NULL,
    PRIMARY KEY (name, turn)) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class StoredTurn:
    """A turn that was answered: the tokens it was given, those it came to, and the answer."""

    turn: int
    prompt_tokens: int
    generated: int
    answer: dict[str, Any]


@dataclass(frozen=True)
class StoredTrajectory:
    """A trajectory as far as it has come. ``fate`` is empty while it goes on, then ``ended`` or ``aborted``."""

    name: str
    group: str
    version: int
    prompt_tokens: int
    fate: str
    reward: float | None
    turns: tuple[StoredTurn, ...]

    @property
    def context(self) -> int:
        """Its tokens after the last turn."""
        return self.turns[-1].prompt_tokens + self.turns[-1].generated if self.turns else self.prompt_tokens

    @property
    def generated(self) -> int:
        return sum(turn.generated for turn in self.turns)


class TurnJournal:
    """One file. It has one writer, the gateway."""

    def __init__(self, path: Path, shared: bool = False) -> None:
        """``shared`` is whether a gateway on another machine may open it."""
        check_target(path)
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            set_journal_mode(self._db, shared)
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute(f"PRAGMA wal_autocheckpoint = {LATEST}")
            for statement in _TABLES.split(";\n"):
                self._db.execute(statement)
        except sqlite3.Error as problem:
            raise UserError(f"{path}: cannot be opened as a gateway's journal: {problem}") from None

    def begin(self, name: str, group: str, version: int, prompt_tokens: int) -> None:
        """A trajectory has begun."""
        row = (name, group, version, prompt_tokens)
        self._db.execute(
            "INSERT OR IGNORE INTO trajectories (name, prompt_group, version, prompt_tokens) VALUES (?, ?, ?, ?)", row
        )

    def add(self, name: str, turn: StoredTurn) -> None:
        """A turn is over."""
        row = (name, turn.turn, turn.prompt_tokens, turn.generated, orjson.dumps(turn.answer))
        self._db.execute("INSERT OR IGNORE INTO turns VALUES (?, ?, ?, ?, ?)", row)

    def end(self, name: str, fate: str, reward: float | None = None) -> None:
        """A trajectory is over."""
        self._db.execute("UPDATE trajectories SET fate = ?, reward = ? WHERE name = ?", (fate, reward, name))

    def trajectory(self, name: str) -> StoredTrajectory | None:
        """All that is known of a trajectory."""
        query = "SELECT prompt_group, version, prompt_tokens, fate, reward FROM trajectories WHERE name = ?"
        found = self._db.execute(query, (name,)).fetchone()
        if found is None:
            return None
        rows = self._db.execute(
            "SELECT turn, prompt_tokens, generated, answer FROM turns WHERE name = ? ORDER BY turn", (name,)
        )
        turns = tuple(StoredTurn(turn, prompt, made, orjson.loads(answer)) for turn, prompt, made, answer in rows)
        group, version, prompt_tokens, fate, reward = found
        return StoredTrajectory(name, group, version, prompt_tokens, fate, reward, turns)

    def close(self) -> None:
        self._db.close()
