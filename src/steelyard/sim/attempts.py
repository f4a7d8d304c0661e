"""Requests that started over after a crash: what counts of their earlier attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.cost import HostTerms
from steelyard.engine import FINISHED, LOST, EngineLog
from steelyard.fleet.frontend import shown

Floats = NDArray[np.float64]
Rows = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class EnginePart:
    """Which part of a request an engine runs: its beginning, its first token, its end."""

    begins: bool = True
    first: bool = True
    ends: bool = True

    @property
    def shows(self) -> bool:
        """Whether clients see its tokens."""
        return self.first or self.ends


def without_lost(log: EngineLog) -> Rows:
    """Rows of a log, without requests that a crash of its engine lost."""
    return _where(log.ended, log.ended["status"] != LOST)


def add_earlier(table: Rows, logs: Sequence[EngineLog], parts: Sequence[EnginePart], host: HostTerms) -> None:
    """Add earlier attempts to a request's row: the earliest start and first token, and the sum of preemptions."""
    for log, part in zip(logs, parts, strict=True):
        rows = _where(log.ended, log.ended["status"] == LOST)
        if not len(rows["index"]):
            continue
        np.add.at(table["preemptions"], rows["index"], rows["preemptions"])
        if part.begins:
            begun = _where(rows, rows["scheduled"] >= 0)
            np.fmin.at(table["scheduled"], begun["index"], begun["scheduled"])
        if part.shows:
            seen = _where(rows, rows["first"] >= 0)
            np.fmin.at(table["first_token"], seen["index"], shown(host, log, seen["first"]))


def gaps_between(logs: Sequence[EngineLog], parts: Sequence[EnginePart]) -> Floats:
    """Seconds from the last token before a crash to the first new one after it, for finished requests."""
    spans: dict[int, list[tuple[float, float, int]]] = {}
    for log, part in zip(logs, parts, strict=True):
        if part.shows and (log.ended["status"] == LOST).any():
            seen = _where(log.ended, (log.ended["status"] == LOST) & (log.ended["first"] >= 0))
            for i, first, last in zip(*(seen[name].tolist() for name in ("index", "first", "last")), strict=True):
                spans.setdefault(i, []).append((log.ends[first], log.ends[last], LOST))
    for log, part in zip(logs, parts, strict=True):
        seen = _where(log.ended, (log.ended["status"] == FINISHED) & (log.ended["first"] >= 0))
        for k in np.flatnonzero(np.isin(seen["index"], list(spans))).tolist() if part.shows else ():
            first, last = int(seen["first"][k]), int(seen["last"][k])
            spans[int(seen["index"][k])].append((log.ends[first], log.ends[last], FINISHED))
    found: list[float] = []
    for attempts in spans.values():
        attempts.sort()
        if attempts[-1][2] == FINISHED:
            found += [after[0] - before[1] for before, after in pairwise(attempts) if before[2] == LOST]
    return np.array(found)


def _where(rows: Rows, mask: NDArray[Any]) -> Rows:
    return rows if mask.all() else {name: column[mask] for name, column in rows.items()}
