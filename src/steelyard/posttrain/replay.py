"""Replays a log of the decision core and compares its commands byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from steelyard.balance.log import Header, Replayed, Row, read_header, replay
from steelyard.errors import UserError
from steelyard.files.jsontext import json_lines

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
    return replay_rows(json_lines(path, torn=True, wanted="a log of the decision core"), path, progress)


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
