"""Replays a log of the decision core and compares its commands byte for byte."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from steelyard.balance.log import Header, Replayed, Row, read_header, replay
from steelyard.errors import UserError

_EVERY = 1000  # events between two reports of progress


@dataclass(frozen=True)
class ReplayVerdict:
    """The result of a replay. ``cut``: the log ends before all commands of its last event were written, as when a
    driver was killed. That event is decided too, and compared with the commands that are there."""

    header: Header
    events: int
    commands: int
    dropped: dict[str, int]
    difference: Replayed | None
    cut: bool


def replay_log(path: Path, progress: Callable[[int], None] = lambda events: None) -> ReplayVerdict:
    """Decide every event of a log again, up to the first difference."""
    return replay_rows(_rows(path), path, progress)


def replay_rows(
    rows: Iterator[Row], path: Path, progress: Callable[[int], None] = lambda events: None
) -> ReplayVerdict:
    """The same for the rows of a log, wherever they are kept."""
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path}: an empty file; a log begins with a header")
    header = read_header(first[1], first[0])
    core = header.settings.core()
    events = commands = 0
    last: Replayed | None = None
    for each in replay(rows, core):
        if last is not None and last.logged != last.decided:
            return ReplayVerdict(header, events, commands, dict(core.dropped), last, cut=False)
        events, commands, last = events + 1, commands + len(each.decided), each
        if events % _EVERY == 0:
            progress(events)
    same = last is None or last.logged == last.decided
    cut = not same and last is not None and last.decided[: len(last.logged)] == last.logged
    return ReplayVerdict(header, events, commands, dict(core.dropped), None if same or cut else last, cut)


def _rows(path: Path) -> Iterator[Row]:
    """Rows of a log, read one at a time since logs are large. An incomplete last line is left out."""
    broken: UserError | None = None
    number = 0
    for number, text in _lines(path):
        if broken is not None:
            raise broken
        where = f"{path}:{number}"
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            broken = UserError(f"{where}: not valid JSON: {error.msg} at column {error.colno}")
            continue
        if not isinstance(row, dict):
            raise UserError(f"{where}: must be a JSON object (found {text[:40]!r})")
        yield where, row
    if broken is not None and number == 1:
        raise broken


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rt", encoding="utf-8") if packed else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if text := line.strip():
                    yield number, text
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; a log of the decision core is JSON lines") from None
    except (OSError, EOFError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
