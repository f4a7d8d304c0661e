"""The result folder: chosen and checked before a run, written after it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from steelyard.errors import UserError
from steelyard.records.tables import write_table
from steelyard.report.page import render_page
from steelyard.report.trace import trace_note, write_trace
from steelyard.sim.result import REQUESTS, STEPS, SUMMARY, Result, summary_text

PAGE = "report.html"
TRACE = "trace.json.gz"

# In the order in which they are moved into place: a folder that has its summary is complete.
_FILES = (REQUESTS, STEPS, TRACE, PAGE, SUMMARY)


def choose_output_dir(out: Path | None, name: str, overwrite: bool) -> Path:
    """The folder a run will write to, checked now so that a mistake does not cost the run.

    Without `out` it is `runs/NAME-N` with the next N. A folder that already holds something is only
    accepted with `overwrite`, and even then nothing but an earlier result's own files is replaced.
    """
    if out is None:
        out = _next_run(Path("runs"), name)
    try:
        if out.is_dir() and any(out.iterdir()) and not overwrite:
            raise UserError(f"{out} is not empty: choose another folder or pass --overwrite")
    except OSError as error:
        raise UserError(f"cannot use {out} for results: {error.strerror}") from error
    check_writable(out)
    return out


def check_writable(out: Path) -> None:
    """Raise UserError unless a folder of results can be made at `out`; leaves nothing behind."""
    try:
        nearest = _nearest_existing(out)
        if not nearest.is_dir():
            raise UserError(f"cannot write results to {out}: {nearest} is not a folder")
        # Try to write: permissions say nothing about read-only and special file systems.
        with tempfile.TemporaryDirectory(prefix=".steelyard-", dir=nearest) as trial:
            if nearest != out:
                (Path(trial) / out.name).mkdir()
    except OSError as error:
        raise UserError(f"cannot write results to {out}: {error.strerror}") from error


def write_result(result: Result, out_dir: Path, *, trace: bool = False, steps: bool = True) -> None:
    """Write the result folder whole or not at all.

    Files are made in a hidden folder beside the target (inside it, where it already exists, so that a
    mounted volume works too) and moved into place at the end; a failure or an interrupt on the way
    removes them. Files of an earlier result are replaced or, if this run has no such file, removed.
    """
    try:
        with _staging(out_dir) as stage:
            write_table(result.requests, stage / REQUESTS)
            if steps:
                write_table(result.steps, stage / STEPS)
            if trace:
                write_trace(result, stage / TRACE)
            _write_texts(result, stage, trace)
            _put_in_place(stage, out_dir)
    except OSError as error:
        raise UserError(f"cannot write results to {out_dir}: {error.strerror or error}") from error


def update_result(result: Result, out_dir: Path, *, trace: bool = False) -> None:
    """Replace the summary and the page of a result folder, when intervals are known. Its tables stay.

    Each file is replaced atomically.
    """
    try:
        with _staging(out_dir) as stage:
            _write_texts(result, stage, trace)
            for name in (PAGE, SUMMARY):
                os.replace(stage / name, out_dir / name)
    except OSError as error:
        raise UserError(f"cannot write results to {out_dir}: {error.strerror or error}") from error


def _write_texts(result: Result, stage: Path, trace: bool) -> None:
    notes = [*result.notes, trace_note(result) if trace else None]
    page = render_page(result, [note for note in notes if note])
    (stage / PAGE).write_text(page, encoding="utf-8", newline="\n")
    (stage / SUMMARY).write_text(summary_json(result), encoding="utf-8", newline="\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8", newline="\n")
        os.replace(part, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None


def summary_json(result: Result) -> str:
    """The text of summary.json: the summary's figures, then the notes that qualify them."""
    return summary_text(result.summary, result.notes)


def _next_run(parent: Path, name: str) -> Path:
    stem = re.sub(r"[^\w.+-]+", "-", name).strip("-.")[:80] or "run"
    numbered = re.compile(re.escape(stem) + r"-(\d+)")
    taken = [m for p in (parent.iterdir() if parent.is_dir() else ()) if (m := numbered.fullmatch(p.name))]
    return parent / f"{stem}-{1 + max((int(m[1]) for m in taken), default=0)}"


def _nearest_existing(path: Path) -> Path:
    return next(p for p in (path, *path.parents) if p.exists() or p.is_symlink())


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """A hidden folder on the target's file system, removed afterwards in any case."""
    home = _nearest_existing(out)
    names = (home / f".steelyard-partial-{os.getpid()}-{n}" for n in count())
    stage = next(path for path in names if not path.exists())
    try:
        stage.mkdir()
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _put_in_place(stage: Path, out: Path) -> None:
    if not out.is_dir():
        out.parent.mkdir(parents=True, exist_ok=True)
        stage.rename(out)
        return
    (out / SUMMARY).unlink(missing_ok=True)
    for name in _FILES:
        if (stage / name).exists():
            os.replace(stage / name, out / name)
        else:
            (out / name).unlink(missing_ok=True)
