"""The log of `steelyard gateway --log`: JSON lines of at, prompt_tokens, output_tokens, session."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from steelyard.errors import UserError, quoted
from steelyard.files.jsontext import json_lines, required
from steelyard.workload.columns import Content, Workload, in_order
from steelyard.workload.traces.lines import recorded, seconds, tokens


def read_gateway(path: Path, limit: int | None = None) -> Workload:
    """Requests in order of arrival, from the first one on.

    A turn of a session is taken to begin with the turn before it and its answer, as chat clients send them, if it is
    long enough. Lines without token counts are left out, and a note says how many.
    """
    at: list[float] = []
    lengths: list[tuple[int, int]] = []
    sessions: list[str | None] = []
    uncounted = 0
    for where, row in json_lines(path, limit, torn=True):
        asked, given = (required(row, key, where) for key in ("prompt_tokens", "output_tokens"))
        if asked is None or given is None:
            uncounted += 1
            continue
        at.append(seconds(required(row, "at", where), "at", where))
        lengths.append((tokens(asked, "prompt_tokens", where), tokens(given, "output_tokens", where)))
        session = row.get("session")
        if session is not None and not isinstance(session, str):
            raise UserError(f"{where}: session must be text or null (found {quoted(session)})")
        sessions.append(session)
    if uncounted and not at:
        raise UserError(f"{path}: none of its {uncounted} requests has prompt_tokens and output_tokens")
    order = sorted(range(len(at)), key=at.__getitem__)
    first = at[order[0]] if order else 0.0
    work = recorded(path, [at[i] - first for i in order], *([lengths[i][k] for i in order] for k in (0, 1)))
    if uncounted:
        work.notes.append(f"{path.name}: requests without token counts are left out ({uncounted})")
    _join_turns(work, [sessions[i] for i in order])
    return in_order(work)


def _join_turns(work: Workload, sessions: list[str | None]) -> None:
    """Name what turns of a session share."""
    last: dict[str, tuple[int, int]] = {}  # by session: stream, and tokens of its latest turn
    contents: list[Content] = []
    stream = np.full(len(work), -1, dtype=np.int64)
    for i, session in enumerate(sessions):
        if session is None:
            contents.append(())
            continue
        name, before = last.get(session, (-1, 0))
        goes_on = name >= 0 and int(work.prompt[i]) >= before
        if not goes_on:
            name, work.streams = work.streams, work.streams + 1
        contents.append(((name, before),) if goes_on else ())
        stream[i] = name
        last[session] = name, int(work.prompt[i] + work.output[i])
    if work.streams:
        work.content, work.stream = contents, stream
