"""A capture of a live engine: its settings, its requests, and what it did.

A folder holds ``meta.json`` (effective settings), ``config.json`` (the model's) and per workload ``NAME.workload.json``
(requests), ``NAME.requests.jsonl.gz`` (their tokens and times) and ``NAME.steps.jsonl.gz`` (every engine step). The
recorder of `steelyard.profile.recorder` writes the last two uncompressed and not the first: the requests are then those
of its own lines.

One engine served all workloads of a folder in sequence: by time if they share a clock, else ``calib-prefill`` first,
``calib-decode`` next, and the others by name. ``fresh`` in ``meta.json`` says whether it was started for them; without
it, the engine counts as fresh if the first workload is in the folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import UserError, quoted
from steelyard.files.finding import is_file, is_folder, is_there
from steelyard.files.jsontext import json_lines, json_object, required
from steelyard.scenario.numbers import MOST
from steelyard.workload.traces.lines import seconds, tokens

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ASKED = ".workload.json"
_ANSWERED = ".requests.jsonl"
_STEPS = ".steps.jsonl"
_FIRST = ("calib-prefill", "calib-decode")


@dataclass(frozen=True)
class ClientTimes:
    """What clients saw, one row per request; tpot is NaN for an output of one token."""

    at: Floats
    ttft: Floats
    tpot: Floats
    e2e: Floats
    output: Ints
    cached: Ints | None  # prompt tokens found in the prefix cache; None if not recorded

    @property
    def makespan(self) -> float:
        """Seconds from the first submission to the last token."""
        return float((self.at + self.e2e).max() - self.at.min())


@dataclass(frozen=True)
class QueueLoad:
    """The engine's queues over time, one row per step (from scheduling to result) or per sample."""

    start: Floats
    end: Floats
    running: Ints
    waiting: Ints
    by_step: bool = True


@dataclass(frozen=True)
class CapturedRun:
    """One captured workload."""

    name: str
    asked: Path
    answered: Path
    stepped: Path
    answers: ClientTimes
    load: QueueLoad
    preemptions: int | None  # None if not recorded
    prompts: Ints  # tokens of each request's prompt, in the order of the answers

    @property
    def order(self) -> Ints:
        """The requests as they were asked: in the order of the workload's file, else by their time, as a recorder
        writes them when they end."""
        if self.asked != self.answered:
            return np.arange(len(self.prompts))
        return np.argsort(self.answers.at, kind="stable")


@dataclass(frozen=True)
class Capture:
    """One engine configuration and its workloads, in order."""

    folder: Path
    meta: dict[str, Any]
    runs: tuple[CapturedRun, ...]

    @property
    def fresh(self) -> bool:
        """Whether the engine had served nothing before the first workload."""
        return bool(self.meta.get("fresh", self.runs[0].name == _FIRST[0]))

    @property
    def engine(self) -> str:
        """The engine that was recorded, with its version; empty if the capture does not say."""
        version = self.meta.get("vllm")
        return f"vLLM {version}" if isinstance(version, str) else ""

    def before(self, run: CapturedRun) -> tuple[CapturedRun, ...]:
        """The workloads that the engine served before this one."""
        return self.runs[: self.runs.index(run)]

    @property
    def meta_file(self) -> Path:
        """The file with the settings, for error messages."""
        return self.folder / "meta.json"


def read_capture_folder(folder: Path) -> Capture:
    """Everything in a capture folder; refuses an incomplete one."""
    if not is_folder(folder):
        raise UserError(f"{folder}: {'not a folder' if is_there(folder) else 'no such folder'}; give a capture folder")
    if not is_file(folder / "meta.json"):
        raise UserError(f"{folder}: no meta.json in it, so it is not a capture folder{_nested(folder)}")
    meta = json_object(folder / "meta.json")
    if not is_file(folder / "config.json"):
        raise UserError(f"{folder}: no config.json in it; a capture folder needs the model's configuration")
    names = sorted({path.name.removesuffix(ASKED) for path in folder.glob(f"*{ASKED}")} | _recorded(folder))
    if not names:
        raise UserError(f"{folder}: no NAME{ASKED} or NAME{_ANSWERED} in it, so there is nothing to replay")
    return Capture(folder, meta, _in_order([_run(folder, name) for name in names]))


def capture_files(folder: Path) -> list[Path]:
    """The files of a capture folder that are read."""
    if not is_folder(folder):
        return []
    kinds = (f"*{ASKED}", f"*{_ANSWERED}*", f"*{_STEPS}*")
    return [folder / "meta.json", folder / "config.json", *(path for kind in kinds for path in folder.glob(kind))]


def _in_order(runs: Sequence[CapturedRun]) -> tuple[CapturedRun, ...]:
    """Runs in the order in which the engine served them."""
    spans = {
        run.name: (run.answers.at.min(initial=np.inf), (run.answers.at + run.answers.e2e).max(initial=-np.inf))
        for run in runs
    }
    by_clock = sorted(runs, key=lambda run: spans[run.name])
    if all(spans[one.name][1] < spans[other.name][0] for one, other in pairwise(by_clock)):
        return tuple(by_clock)
    known = {name: place for place, name in enumerate(_FIRST)}
    return tuple(sorted(runs, key=lambda run: (known.get(run.name, len(known)), run.name)))


def _recorded(folder: Path) -> set[str]:
    """Names of runs that a recorder wrote without a workload file."""
    return {path.name.partition(_ANSWERED)[0] for path in folder.glob(f"*{_ANSWERED}*")}


def _nested(folder: Path) -> str:
    inner = sorted(path.parent.name for path in folder.glob("*/meta.json"))
    return f"; its subfolders {', '.join(inner)} are: give one of them" if inner else ""


def _run(folder: Path, name: str) -> CapturedRun:
    answered, stepped = (_packed_or_not(folder / f"{name}{kind}") for kind in (_ANSWERED, _STEPS))
    asked = folder / f"{name}{ASKED}"
    if not is_file(asked):
        asked = answered
    load, preemptions = _load(stepped)
    prompts = _prompts(asked)
    answers = _answers(answered, list(prompts))
    return CapturedRun(name, asked, answered, stepped, answers, load, preemptions, np.array(list(prompts.values())))


def _packed_or_not(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    found = packed if is_file(packed) else path
    if not is_file(found):
        raise UserError(f"{packed}: no such file; a capture has NAME{_ANSWERED}.gz and NAME{_STEPS}.gz of each NAME")
    return found


def _prompts(asked: Path) -> dict[str, int]:
    """The tokens of each request's prompt by its id, in order; mistakes in them are reported by the file's reader."""
    if not asked.name.endswith(ASKED):
        named = [(where, str(required(row, "id", where)), row) for where, row in json_lines(asked, None)]
    else:
        rows = json_object(asked).get("requests")
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            raise UserError(f"{asked}: must be a JSON object with a list of `requests`, each an object")
        named = [(f"{asked}: requests[{i}]", str(row.get("id", i)), row) for i, row in enumerate(rows)]
    places: dict[str, str] = {}
    for where, name, _ in named:
        before = places.setdefault(name, where)
        if before != where:
            raise UserError(f"{where}: id {quoted(name)} is taken by {before}; every request needs its own")
    lengths = {name: row.get("prompt") for _, name, row in named}
    return {name: length if type(length) is int and 0 <= length <= MOST else 0 for name, length in lengths.items()}


def _answers(path: Path, ids: Sequence[str]) -> ClientTimes:
    """One row per request of the workload, in its order; refuses a record with missing requests."""
    found: dict[str, tuple[float, float, float, int, int]] = {}
    asked = set(ids)
    for where, row in json_lines(path, None):
        name = str(required(row, "id", where))
        if name not in asked:
            raise UserError(f"{where}: request {quoted(name)} is not one of the workload's")
        if name in found:
            raise UserError(f"{where}: id {quoted(name)} is taken by an earlier line; every request needs its own")
        times = _token_times(required(row, "tokens", where), where)
        at = seconds(required(row, "at", where), "at", where)
        found[name] = (at, *times, tokens(row.get("cached", 0), "cached", where))
    missing = [name for name in ids if name not in found]
    if missing:
        raise UserError(f"{path}: lacks {len(missing)} of the {len(ids)} requests asked, such as {missing[0]}")
    table = np.array([found[name] for name in ids], dtype=np.float64).reshape(-1, 5).T
    first, last, output = table[1], table[2], table[3]
    tpot = np.divide(last - first, output - 1, out=np.full(len(ids), np.nan), where=output > 1)
    return ClientTimes(
        at=table[0], ttft=first, tpot=tpot, e2e=last, output=output.astype(np.int64), cached=table[4].astype(np.int64)
    )


def _token_times(value: Any, where: str) -> tuple[float, float, int]:
    if not isinstance(value, list) or not value:
        raise UserError(f"{where}: tokens must be a list of seconds, one per output token (found {quoted(value)})")
    first, last = (seconds(value[i], f"tokens[{i}]", where) for i in (0, -1))
    if last < first:
        raise UserError(f"{where}: tokens must rise (found {first} first and {last} last)")
    return first, last, len(value)


def _load(path: Path) -> tuple[QueueLoad, int]:
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
    return QueueLoad(start_end[:, 0], start_end[:, 1], queued[:, 0], queued[:, 1]), preemptions
