"""The folder of the page: scenarios in it, results in its `runs`. Names have no slashes, and links are refused."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.errors import UserError, quoted
from steelyard.report.names import file_name

RUNS = "runs"
PART = "ours"  # of the folder of a live run with two ways of scheduling
ENDINGS = (".yaml", ".yml", ".json")
_MOST_NAME = 120  # characters; chosen
_MOST_SHOWN = 5000  # scenarios, and results; chosen


@dataclass(frozen=True)
class UiFolder:
    """A folder that the page shows and writes to. Nothing outside it is named, read or written."""

    root: Path

    def scenario(self, name: str) -> Path:
        """The path of a scenario file that is there."""
        path = self.new_scenario(name)
        if _kind(path) != "file":
            raise UserError(f"{quoted(name)}: no such scenario in this folder")
        return path

    def new_scenario(self, name: str) -> Path:
        """The path of a scenario file that may be written."""
        if not _is_name(name) or not name.endswith(ENDINGS):
            raise UserError(f"{quoted(name)}: not a scenario's name; give one such as chat.yaml, without slashes")
        path = self.root / name
        if _kind(path) not in ("file", ""):
            raise UserError(f"{quoted(name)}: is not a regular file; give another name")
        return path

    def run(self, name: str) -> Path:
        """The folder of a result that is there."""
        path = self.root / RUNS / name
        if not _is_name(name) or _kind(self.root / RUNS) != "folder" or _kind(path) != "folder":
            raise UserError(f"{quoted(name)}: no such result in this folder")
        return path

    def result(self, name: str) -> Path:
        """The folder of a result that is there, and whose files are its own."""
        path = self.run(name)
        if link := link_in(path):
            raise UserError(f"{quoted(name)}: {quoted(link)} is a link, and links are not followed")
        return path

    def file_of(self, run: str, name: str) -> Path:
        """A file of a result."""
        path = self.run(run) / name
        if not _is_name(name) or _kind(path) != "file":
            raise UserError(f"{quoted(name)}: no such file in {run}")
        return path

    def scenarios(self) -> list[os.DirEntry[str]]:
        """Scenario files, by name."""
        return [each for each in _entries(self.root, "file") if each.name.endswith(ENDINGS)]

    def runs(self) -> list[os.DirEntry[str]]:
        """Folders of results, by name."""
        return list(_entries(self.root / RUNS, "folder")) if _kind(self.root / RUNS) == "folder" else []

    def next_run(self, name: str, taken: set[str]) -> str:
        """A name for the next result of a scenario: ``NAME-N``."""
        stem = file_name(name)
        numbered = re.compile(re.escape(stem) + r"-(\d{1,9})")
        known = {*(each.name for each in self.runs()), *taken}
        numbers = [int(found[1]) for each in known if (found := numbered.fullmatch(each))]
        return f"{stem}-{1 + max(numbers, default=0)}"

    def named_outside(self, written: Any, base: Path) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """Key and value of all that a scenario names and that lies outside this folder."""
        if isinstance(written, str):
            if _leads_out(base / written, self.root):
                yield (), written
        elif isinstance(written, dict | list | tuple):
            for key, each in written.items() if isinstance(written, dict) else enumerate(written):
                for path, value in self.named_outside(each, base):
                    yield (key, *path), value


def link_in(result: Path) -> str:
    """The name of a link among the files of a result, or of the run that is its part; empty if there is none."""
    for folder in (result, result / PART):
        if _kind(folder) == "folder":
            with os.scandir(folder) as entries:
                found = sorted(each.name for each in entries if each.is_symlink())
            if found:
                return found[0]
    return ""


def _is_name(name: str) -> bool:
    plain = name.isprintable() and not set(name) & {"/", "\\"}
    return plain and 0 < len(name) <= _MOST_NAME and not name.startswith(".")


def _kind(path: Path) -> str:
    """``file``, ``folder``, ``other``, or nothing if nothing is there. A link is other."""
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError):
        return ""
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def _entries(folder: Path, kind: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            found = sorted(entries, key=lambda each: each.name)
    except OSError as error:
        raise UserError(f"{folder}: cannot be listed: {error.strerror}") from None
    wanted = os.DirEntry.is_file if kind == "file" else os.DirEntry.is_dir
    yield from [each for each in found if _is_name(each.name) and wanted(each, follow_symlinks=False)][:_MOST_SHOWN]


def _leads_out(path: Path, root: Path) -> bool:
    """Whether a path is of something that exists, outside a folder."""
    try:
        real = os.path.realpath(path)
        return os.path.lexists(path) and not Path(real).is_relative_to(os.path.realpath(root))
    except (OSError, ValueError):
        return False
