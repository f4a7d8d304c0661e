"""Requests that started over after a crash: what their clients had of earlier attempts."""

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
class Part:
    """What an engine did of each request it had: whether it began it, gave its first token, and ended it."""

    begins: bool = True
    first: bool = True
    ends: bool = True

    @property
    def shows(self) -> bool:
        """Whether clients see its tokens."""
        return self.first or self.ends


def settled(log: EngineLog) -> Rows:
    """What a log has of requests that did not start over from there."""
    return _where(log.ended, log.ended["status"] != LOST)


def add_earlier(table: Rows, logs: Sequence[EngineLog], parts: Sequence[Part], host: HostTerms) -> None:
    """Begin, first token and preemptions of a request are those of all its attempts; the rest is of the last one."""
    for log, part in zip(logs, parts, strict=True):
        rows = _where(log.ended, log.ended["status"] == LOST)
        if not len(rows["index"]):
            continue
        np.add.at(table["preemptions"], rows["index"], rows["preemptions"])
        if part.begins:
            begun = _where(rows, rows["scheduled"] >= 0)
            np.fmin.at(table["scheduled"], begun["index"], begun["scheduled"])
        if part.shows:
            told = _where(rows, rows["first"] >= 0)
            np.fmin.at(table["first_token"], told["index"], shown(host, log, told["first"]))


def gaps_between(logs: Sequence[EngineLog], parts: Sequence[Part]) -> Floats:
    """Seconds from the last token before a crash to the first new one after it, of requests that finished."""
    spans: dict[int, list[tuple[float, float, int]]] = {}
    for log, part in zip(logs, parts, strict=True):
        if part.shows and (log.ended["status"] == LOST).any():
            told = _where(log.ended, (log.ended["status"] == LOST) & (log.ended["first"] >= 0))
            for i, first, last in zip(*(told[name].tolist() for name in ("index", "first", "last")), strict=True):
                spans.setdefault(i, []).append((log.ends[first], log.ends[last], LOST))
    for log, part in zip(logs, parts, strict=True):
        told = _where(log.ended, (log.ended["status"] == FINISHED) & (log.ended["first"] >= 0))
        for k in np.flatnonzero(np.isin(told["index"], list(spans))).tolist() if part.shows else ():
            first, last = int(told["first"][k]), int(told["last"][k])
            spans[int(told["index"][k])].append((log.ends[first], log.ends[last], FINISHED))
    found: list[float] = []
    for attempts in spans.values():
        attempts.sort()
        if attempts[-1][2] == FINISHED:
            found += [after[0] - before[1] for before, after in pairwise(attempts) if before[2] == LOST]
    return np.array(found)


def _where(rows: Rows, mask: NDArray[Any]) -> Rows:
    return rows if mask.all() else {name: column[mask] for name, column in rows.items()}
