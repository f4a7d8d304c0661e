"""A capture of a live engine: what it was told to be, what it was asked, and what it did.

A folder holds ``meta.json`` (effective settings), ``config.json`` (the model's) and per workload ``NAME.workload.json``
(asked), ``NAME.requests.jsonl.gz`` (answered, token by token) and ``NAME.steps.jsonl.gz`` (every engine step).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import UserError
from steelyard.workload.traces.lines import json_lines, read_text, required, seconds, tokens

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ASKED = ".workload.json"
_ANSWERED = ".requests.jsonl.gz"
_STEPS = ".steps.jsonl.gz"


@dataclass(frozen=True)
class Answers:
    """What clients saw, one row per request; tpot is NaN for an output of one token."""

    at: Floats
    ttft: Floats
    tpot: Floats
    e2e: Floats
    output: Ints
    cached: Ints

    @property
    def makespan(self) -> float:
        """Seconds from the first submission to the last token."""
        return float((self.at + self.e2e).max() - self.at.min())


@dataclass(frozen=True)
class Load:
    """The engine's queues over time, a row per step: from its scheduling until its result was there."""

    start: Floats
    end: Floats
    running: Ints
    waiting: Ints


@dataclass(frozen=True)
class CapturedRun:
    """One workload as it went."""

    name: str
    asked: Path
    answers: Answers
    load: Load
    preemptions: int


@dataclass(frozen=True)
class Capture:
    """One engine configuration and the workloads it was given."""

    folder: Path
    meta: dict[str, Any]
    runs: tuple[CapturedRun, ...]

    @property
    def meta_file(self) -> Path:
        """Where the settings stand, for messages about them."""
        return self.folder / "meta.json"


def read_capture_folder(folder: Path) -> Capture:
    """Everything in a capture folder; refuses one that is not whole."""
    if not folder.is_dir():
        raise UserError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}; give a capture folder")
    if not (folder / "meta.json").is_file():
        raise UserError(f"{folder}: no meta.json in it, so it is not a capture folder{_nested(folder)}")
    meta = _object(folder / "meta.json")
    if not (folder / "config.json").is_file():
        raise UserError(f"{folder}: no config.json in it; a capture folder needs the model's configuration")
    asked = sorted(folder.glob(f"*{ASKED}"))
    if not asked:
        raise UserError(f"{folder}: no NAME{ASKED} in it, so there is nothing to replay")
    return Capture(folder, meta, tuple(_run(path) for path in asked))


def _nested(folder: Path) -> str:
    inner = sorted(path.parent.name for path in folder.glob("*/meta.json"))
    return f"; its subfolders {', '.join(inner)} are: give one of them" if inner else ""


def _object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: must be a JSON object (found {str(data)[:40]!r})")
    return data


def _run(asked: Path) -> CapturedRun:
    name = asked.name.removesuffix(ASKED)
    files = {suffix: asked.with_name(name + suffix) for suffix in (_ANSWERED, _STEPS)}
    for path in files.values():
        if not path.is_file():
            raise UserError(f"{path}: no such file, but {asked.name} is there; a capture has both")
    load, preemptions = _load(files[_STEPS])
    answers = _answers(files[_ANSWERED], _ids(asked))
    return CapturedRun(name, asked, answers, load, preemptions)


def _ids(asked: Path) -> list[str]:
    """The requests' ids in order; whatever else is wrong with the file its own reader will say."""
    rows = _object(asked).get("requests")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{asked}: must be a JSON object with a list of `requests`, each an object")
    return [str(row.get("id", i)) for i, row in enumerate(rows)]


def _answers(path: Path, ids: Sequence[str]) -> Answers:
    """One row per request asked, in that order; a record that lacks some would compare different loads."""
    found: dict[str, tuple[float, float, float, int, int]] = {}
    asked = set(ids)
    for where, row in json_lines(path, None):
        name = str(required(row, "id", where))
        if name not in asked:
            raise UserError(f"{where}: request {name} is not one of the workload's")
        times = _token_times(required(row, "tokens", where), where)
        at = seconds(required(row, "at", where), "at", where)
        found[name] = (at, *times, tokens(row.get("cached", 0), "cached", where))
    missing = [name for name in ids if name not in found]
    if missing:
        raise UserError(f"{path}: lacks {len(missing)} of the {len(ids)} requests asked, such as {missing[0]}")
    table = np.array([found[name] for name in ids], dtype=np.float64).reshape(-1, 5).T
    first, last, output = table[1], table[2], table[3]
    tpot = np.divide(last - first, output - 1, out=np.full(len(ids), np.nan), where=output > 1)
    return Answers(
        at=table[0], ttft=first, tpot=tpot, e2e=last, output=output.astype(np.int64), cached=table[4].astype(np.int64)
    )


def _token_times(value: Any, where: str) -> tuple[float, float, int]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: tokens must be a list of seconds, one per output token (found {str(value)[:40]!r})")
    first, last = (seconds(value[i], f"tokens[{i}]", where) for i in (0, -1))
    if last < first:
        raise UserError(f"{where}: tokens must rise (found {first} first and {last} last)")
    return first, last, len(value)


def _load(path: Path) -> tuple[Load, int]:
    """The queues at every step, and the preemptions of all steps."""
    spans: list[tuple[float, float]] = []
    queues: list[tuple[int, int]] = []
    preemptions = 0
    for where, row in json_lines(path, None):
        start, end = (seconds(required(row, key, where), key, where) for key in ("t_schedule", "t_update"))
        running, waiting = (tokens(required(row, key, where), key, where) for key in ("running", "waiting"))
        spans.append((start, end))
        queues.append((running, waiting))
        preemptions += tokens(row.get("preempted", 0), "preempted", where)
    start_end = np.array(spans, dtype=np.float64).reshape(-1, 2)
    queued = np.array(queues, dtype=np.int64).reshape(-1, 2)
    return Load(start_end[:, 0], start_end[:, 1], queued[:, 0], queued[:, 1]), preemptions
