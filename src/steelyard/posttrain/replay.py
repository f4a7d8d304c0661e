"""A log of the decision core, decided once more: the same commands, to the byte, or the first place that differs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from steelyard.balance.log import Header, Replayed, Row, read_header, replay
from steelyard.errors import UserError
from steelyard.records.lines import text_lines

_EVERY = 1000  # events between two reports of progress


@dataclass(frozen=True)
class ReplayVerdict:
    """What came of a replay. ``cut`` says that the log ends before all of its last event's commands were written, as it
    does where a driver was killed: that event is decided, and what is there of its commands compared."""

    header: Header
    events: int
    commands: int
    dropped: dict[str, int]
    difference: Replayed | None
    cut: bool


def replay_log(path: Path, progress: Callable[[int], None] = lambda events: None) -> ReplayVerdict:
    """Decide every event of a log again, up to the first difference."""
    rows = _rows(path)
    first = next(rows, None)
    if first is None:
        raise UserError(f"{path}: an empty file; a log begins with a header")
    header = read_header(first[1], first[0])
    core = header.settings.core()
    events = commands = 0
    last: Replayed | None = None
    for each in replay(rows, core):
        if last is not None and last.logged != last.decided:
            break
        events, commands, last = events + 1, commands + len(each.decided), each
        if events % _EVERY == 0:
            progress(events)
    same = last is None or last.logged == last.decided
    cut = not same and last is not None and last.decided[: len(last.logged)] == last.logged and _is_last(path, last)
    return ReplayVerdict(header, events, commands, dict(core.dropped), None if same or cut else last, cut)


def _is_last(path: Path, event: Replayed) -> bool:
    """Whether nothing but an event's own commands comes after it."""
    numbers = [number for number, text in text_lines(path) if text.startswith('{"id":')]
    return event.where == f"{path}:{numbers[-1]}"


def _rows(path: Path) -> Iterator[Row]:
    """Lines of a log. A last one that was only written in part is left out."""
    lines = list(text_lines(path))
    for place, (number, text) in enumerate(lines):
        where = f"{path}:{number}"
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            if place and place == len(lines) - 1:
                return
            raise UserError(f"{where}: not valid JSON: {error.msg} at column {error.colno}") from None
        if not isinstance(row, dict):
            raise UserError(f"{where}: must be a JSON object (found {text[:40]!r})")
        yield where, row
