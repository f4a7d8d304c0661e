"""The result folder: chosen and checked before a run, written after it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.folder import SUMMARY, check_folder, result_folder
from steelyard.files.swap import finish_swap
from steelyard.files.writing import written_text
from steelyard.records.tables import write_table, write_tables
from steelyard.report.names import file_name
from steelyard.report.page import render_page
from steelyard.report.trace import trace_note, write_trace
from steelyard.sim.kept_scenario import write_scenario
from steelyard.sim.result import REQUESTS, STEPS, Result, summary_text

PAGE = "report.html"
TRACE = "trace.json.gz"


def choose_output_dir(out: Path | None, name: str, overwrite: bool) -> Path:
    """The folder a run will write to, checked now so that a mistake does not cost the run.

    Without `out` it is `runs/NAME-N` with the next N. A folder that already holds something is only
    accepted with `overwrite`, and even then nothing but an earlier result's own files is replaced.
    """
    if out is None:
        out = _next_run(Path("runs"), name)
    check_folder(out, fresh=not overwrite)
    return out


class OutputFolder:
    """Where a run writes its result, chosen and checked before the run."""

    def __init__(self, out: Path | None, name: str, overwrite: bool) -> None:
        self.path = choose_output_dir(out, name, overwrite)
        self._name = name
        self._numbered = out is None
        self._fresh = not overwrite
        self._written: os.stat_result | None = None

    @contextmanager
    def stage(self) -> Iterator[Path]:
        """A private folder for the files of the result. If another run took the number meanwhile, this one gets the
        next; a folder that the user has named is refused."""
        with result_folder(self.path, self._fresh, another=self._next if self._numbered else None) as stage:
            yield stage
        self._written = os.stat(self.path / SUMMARY)

    def update(self, result: Result, *, trace: bool = False) -> None:
        """Replace the summary and the page, when intervals are known, unless another run has replaced the result."""
        finish_swap(self.path)
        if self._written is None or not os.path.samestat(os.stat(self.path / SUMMARY), self._written):
            raise UserError(f"{self.path}: another run has replaced the result, which is left as it is")
        update_result(result, self.path, trace=trace)
        self._written = os.stat(self.path / SUMMARY)

    def _next(self) -> Path:
        self.path = _next_run(Path("runs"), self._name)
        return self.path


def write_result(result: Result, out_dir: Path, *, trace: bool = False, steps: bool = True) -> None:
    """Write the result folder whole or not at all. Files of an earlier result are replaced or, if this run has no such
    file, removed."""
    with result_folder(out_dir) as stage:
        write_files(result, stage, trace=trace, steps=steps)


def write_files(result: Result, stage: Path, *, trace: bool = False, steps: bool = True) -> None:
    """Write the files of a result to a private folder."""
    write_scenario(result.scenario, stage)
    write_table(result.requests, stage / REQUESTS)
    if steps:
        write_tables(result.step_tables(), stage / STEPS)
    if trace:
        write_trace(result, stage / TRACE)
    _write_texts(result, stage, trace)


def update_result(result: Result, out_dir: Path, *, trace: bool = False) -> None:
    """Replace the summary and the page of a result folder, when intervals are known. Its tables stay."""
    with result_folder(out_dir, names=(PAGE, SUMMARY)) as stage:
        _write_texts(result, stage, trace)


def _write_texts(result: Result, stage: Path, trace: bool) -> None:
    notes = [*result.notes, trace_note(result) if trace else None]
    page = render_page(result, [note for note in notes if note])
    for name, text in ((PAGE, page), (SUMMARY, summary_json(result))):
        with written_text(stage / name) as file:
            file.write(text)


def summary_json(result: Result) -> str:
    """The text of summary.json: the summary's figures, then the notes that qualify them."""
    return summary_text(result.summary, result.notes)


def _next_run(parent: Path, name: str) -> Path:
    stem = file_name(name)
    numbered = re.compile(re.escape(stem) + r"-(\d+)")
    try:
        taken = [m for p in (parent.iterdir() if parent.is_dir() else ()) if (m := numbered.fullmatch(p.name))]
    except OSError as error:
        raise UserError(f"{parent}: cannot be listed: {error.strerror}; give --out") from None
    return parent / f"{stem}-{1 + max((int(m[1]) for m in taken), default=0)}"
