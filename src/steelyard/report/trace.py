"""The run as Chrome trace events, for Perfetto (ui.perfetto.dev) or chrome://tracing.

One process per replica: its steps as slices, its queue and free blocks as counters, its requests as
asynchronous slices with the phases queue, prefill and decode. Process 0 holds requests no replica took.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.files.writing import written
from steelyard.records.jsontext import compact, plain
from steelyard.words import count, seconds

if TYPE_CHECKING:
    from steelyard.sim import Result

EVENT_CAP = 200_000  # events that viewers can still open

_EVENTS_PER_REQUEST = 8  # the whole request and its three phases, each a beginning and an end
_STEP_THREAD = 1
_STEP_COLUMNS = (
    "replica",
    "step",
    "start",
    "end",
    "n_decode",
    "kv_decode",
    "prefill_tokens",
    "prefill_requests",
    "running",
    "waiting",
    "free_blocks",
    "preempted",
)

Event = dict[str, Any]


@dataclass(frozen=True)
class _Shown:
    """The rows that fit under the cap: the earliest of each table, in order of time."""

    steps: dict[str, np.ndarray]
    requests: dict[str, np.ndarray]
    note: str | None


def trace_note(result: Result, cap: int = EVENT_CAP) -> str | None:
    """What the trace leaves out to stay under the cap; None if it shows the whole run."""
    return _choose(result, cap).note


def write_trace(result: Result, path: Path, cap: int = EVENT_CAP) -> None:
    """Stream the trace to a gzipped JSON file, the same bytes for the same run."""
    shown = _choose(result, cap)
    about = {"name": result.summary.name, "steelyard": result.summary.steelyard, "note": shown.note}
    with (
        written(path) as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=6) as zipped,
        io.TextIOWrapper(zipped, encoding="utf-8", errors="backslashreplace", newline="\n") as text,
    ):
        text.write(f'{{"displayTimeUnit":"ms","otherData":{compact(about)},"traceEvents":[\n')
        encode, separator = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode, ""
        for event in _events(shown):
            text.write(separator + encode(event))
            separator = ",\n"
        text.write("\n]}\n")


def _choose(result: Result, cap: int) -> _Shown:
    """Requests may take half of the cap, steps the rest."""
    arrivals, starts = result.requests["arrival"], np.concatenate([each["start"] for each in result.step_tables()])
    requests = _earliest(arrivals, cap // 2 // _EVENTS_PER_REQUEST)
    left = cap - len(requests) * _EVENTS_PER_REQUEST
    steps = _earliest(starts, left)
    table = _steps_at(result, steps)
    queue, free = _counter_moves(table)
    steps = steps[: np.searchsorted(np.cumsum(1 + queue + free), left, side="right")]
    cuts = [
        f"the first {count(len(rows))} of {count(len(times))} {noun} (to {seconds(_last(times, rows))})"
        for noun, times, rows in (("steps", starts, steps), ("requests", arrivals, requests))
        if len(rows) < len(times)
    ]
    note = f"the trace shows only {' and '.join(cuts)}, to stay openable" if cuts else None
    return _Shown(
        {name: column[: len(steps)] for name, column in table.items()},
        {name: column[requests] for name, column in result.requests.items()},
        note,
    )


def _steps_at(result: Result, rows: np.ndarray) -> dict[str, np.ndarray]:
    """These rows of all steps, in this order, without a table of all."""
    rising = np.sort(rows)
    parts, first = [], 0
    for table in result.step_tables():
        end = first + len(table["start"])
        low, high = np.searchsorted(rising, [first, end])
        parts.append({name: column[rising[low:high] - first] for name, column in table.items()})
        first = end
    place = np.searchsorted(rising, rows)
    return {name: np.concatenate([part[name] for part in parts])[place] for name in parts[0]}


def _earliest(times: np.ndarray, most: int) -> np.ndarray:
    """Indices of the `most` earliest rows in order of time, ties by row; rows without a time come last."""
    times = np.nan_to_num(times, nan=np.inf)
    latest = np.partition(times, most)[most] if len(times) > most else np.inf
    within = np.flatnonzero(times <= latest)
    return within[np.argsort(times[within], kind="stable")][:most]


def _counter_moves(steps: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """For steps in order of time, 1 where the queue and where the free blocks of their replica changed."""
    order = np.argsort(steps["replica"], kind="stable")

    def moved(*names: str) -> np.ndarray:
        flags = np.ones(len(order), dtype=np.int64)
        columns = [steps[name][order] for name in ("replica", *names)]
        flags[order[1:]] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
        return flags

    return moved("waiting", "running"), moved("free_blocks")


def _last(times: np.ndarray, rows: np.ndarray) -> float | None:
    return float(times[rows[-1]]) if len(rows) else None


def _events(shown: _Shown) -> Iterator[Event]:
    replicas = np.union1d(shown.steps["replica"], shown.requests["replica"])
    for replica in replicas.tolist():
        yield from _process(replica)
    if shown.note:
        yield {"name": shown.note, "ph": "i", "s": "g", "ts": 0, "pid": 0, "tid": 0}
    yield from _steps(shown.steps)
    yield from _requests(shown.requests)


def _process(replica: int) -> Iterator[Event]:
    pid = replica + 1
    name = "no replica" if replica < 0 else f"replica {replica}"
    yield {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
    yield {"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}}
    if replica >= 0:
        yield {"name": "thread_name", "ph": "M", "pid": pid, "tid": _STEP_THREAD, "args": {"name": "steps"}}


def _steps(rows: dict[str, np.ndarray]) -> Iterator[Event]:
    columns = [rows[name].tolist() for name in _STEP_COLUMNS]
    moves = [flags.tolist() for flags in _counter_moves(rows)]
    for row in zip(*columns, *moves, strict=True):
        replica, step, start, end, n_decode, kv, prefill, chunks, *rest = row
        running, waiting, free, preempted, queue_moved, free_moved = rest
        pid, ts = replica + 1, _micros(start)
        args = {"step": step, "n_decode": n_decode, "kv": kv, "tokens": n_decode + prefill}
        if prefill:
            args |= {"prefill_tokens": prefill, "prefill_requests": chunks}
        if preempted:
            args["preempted"] = preempted
        yield {
            "name": _step_name(n_decode, prefill),
            "cat": "step",
            "ph": "X",
            "ts": ts,
            "dur": _micros(end - start),
            "pid": pid,
            "tid": _STEP_THREAD,
            "args": args,
        }
        if queue_moved:
            queue = {"waiting": waiting, "running": running}
            yield {"name": "requests", "ph": "C", "ts": ts, "pid": pid, "args": queue}
        if free_moved:
            yield {"name": "free blocks", "ph": "C", "ts": ts, "pid": pid, "args": {"free": free}}


def _step_name(n_decode: int, prefill: int) -> str:
    if not prefill:
        return "decode"
    return "prefill+decode" if n_decode else "prefill"


def _requests(rows: dict[str, np.ndarray]) -> Iterator[Event]:
    details = ("id", "label", "prompt", "output", "cached", "preemptions", "status", "reason", "ttft", "e2e")
    columns = [rows[name].tolist() for name in details]
    moments = [rows[name].tolist() for name in ("arrival", "scheduled", "first_token", "finish")]
    for replica, times, values in zip(
        rows["replica"].tolist(), zip(*moments, strict=True), zip(*columns, strict=True), strict=True
    ):
        known = [t for t in times if math.isfinite(t)]
        if not known:
            continue  # a follower whose predecessor never ended was never submitted
        args = plain(dict(zip(details, values, strict=True)))
        same = {"cat": "request", "id": str(args["id"]), "pid": replica + 1, "tid": 0}
        end = max(known)
        yield {"name": "request", "ph": "b", "ts": _micros(known[0]), **same, "args": args}
        for name, begin, until in zip(("queue", "prefill", "decode"), times, times[1:], strict=False):
            if math.isfinite(begin) and begin < end:
                yield {"name": name, "ph": "b", "ts": _micros(begin), **same}
                stop = until if math.isfinite(until) else end
                yield {"name": name, "ph": "e", "ts": _micros(stop), **same}
        yield {"name": "request", "ph": "e", "ts": _micros(end), **same}


def _micros(value: float) -> float:
    return round(value * 1e6, 3)
