"""What an engine writes down while it runs: little per event, expanded to whole tables afterwards."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.engine.request import Request

STEP_FIELDS = (
    "step",
    "n_decode",
    "kv_decode",
    "prefill_tokens",
    "prefill_requests",
    "prefill_pairs",
    "running",
    "waiting",
    "free_blocks",
    "preempted",
)


class EngineLog:
    """Append-only records of one engine.

    ``ends`` has every step's end. ``rows`` has one record per *stretch*: its first step, and what that step ran; the
    following steps of a stretch differ only in that every decode has one token more.
    """

    __slots__ = ("breaks", "ends", "requests", "restarts", "rows")

    def __init__(self) -> None:
        self.ends = array("d")
        self.rows = array("q")  # STEP_FIELDS, flat
        self.restarts: list[tuple[int, float]] = []  # (step, start) where the engine had been idle
        self.requests: list[tuple[int, int, int, int, int, int, float]] = []
        self.breaks: list[tuple[int, int]] = []

    def done(self, r: Request) -> None:
        """A request has ended (or was given up): keep its figures, let go of the object."""
        self.requests.append((r.index, r.status, r.first, r.last, r.hit, r.preemptions, r.scheduled))
        if r.breaks:
            self.breaks.extend(r.breaks)


@dataclass(frozen=True)
class EngineRecord:
    """An engine's log as arrays."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    steps: dict[str, NDArray[np.int64]]  # one row per step, STEP_FIELDS less prefill_pairs
    pairs: NDArray[np.int64]
    index: NDArray[np.int64]
    status: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    hit: NDArray[np.int64]
    preemptions: NDArray[np.int64]
    scheduled: NDArray[np.float64]
    gaps: tuple[NDArray[np.float64], NDArray[np.int64]]  # between output tokens: seconds, how many


def expand(log: EngineLog) -> EngineRecord:
    """Turn an engine's log into one row per step and one per request."""
    end = np.frombuffer(log.ends, dtype=np.float64).copy() if log.ends else np.empty(0)
    start = np.empty_like(end)
    start[1:] = end[:-1]
    for step, second in log.restarts:
        start[step] = second
    rows = np.frombuffer(log.rows, dtype=np.int64).reshape(-1, len(STEP_FIELDS)) if log.rows else None
    steps: dict[str, NDArray[np.int64]] = {}
    if rows is None:
        steps = {name: np.empty(0, dtype=np.int64) for name in STEP_FIELDS}
    else:
        first_step = rows[:, 0]
        lengths = np.diff(first_step, append=len(end))
        stretch = np.repeat(np.arange(len(rows)), lengths)
        into = np.arange(len(end)) - first_step[stretch]
        for column, name in enumerate(STEP_FIELDS):
            steps[name] = rows[stretch, column]
        steps["step"] = np.arange(len(end))
        steps["kv_decode"] += into * steps["n_decode"]
    table: Any = log.requests or np.empty((0, 7))
    columns = np.asarray(table, dtype=np.float64)
    index, status, first, last, hit, preemptions = (columns[:, i].astype(np.int64) for i in range(6))
    return EngineRecord(
        start=start,
        end=end,
        pairs=steps.pop("prefill_pairs"),
        steps=steps,
        index=index,
        status=status,
        first=first,
        last=last,
        hit=hit,
        preemptions=preemptions,
        scheduled=columns[:, 6],
        gaps=_gaps(end, first, last, log.breaks),
    )


def _gaps(
    end: NDArray[np.float64],
    first: NDArray[np.int64],
    last: NDArray[np.int64],
    breaks: list[tuple[int, int]],
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Time between a request's output tokens, as (seconds, how many), without looking at one token.

    A request that emits from step f to step l has the gaps of steps f+1..l, so the number of requests per step gap is
    a running sum; where emission skipped steps (preemption) the skipped ones are taken out and the long gap put in.
    """
    emitted = first >= 0
    weight = np.bincount(first[emitted] + 1, minlength=len(end) + 1)
    weight -= np.bincount(last[emitted] + 1, minlength=len(end) + 1)[: len(weight)]
    extra = np.empty(0)
    if breaks:
        skipped = np.asarray(breaks, dtype=np.int64)
        weight -= np.bincount(skipped[:, 0] + 1, minlength=len(weight))
        weight += np.bincount(skipped[:, 1] + 1, minlength=len(weight))
        extra = end[skipped[:, 1]] - end[skipped[:, 0]]
    count = np.cumsum(weight)[: len(end)]
    at = np.flatnonzero(count)
    seconds = end[at] - end[at - 1]
    return np.concatenate([seconds, extra]), np.concatenate([count[at], np.ones(len(extra), dtype=np.int64)])
