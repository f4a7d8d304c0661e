"""What a search has found, in a file: an interrupted or killed search goes on where it was, and repeats nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self

from steelyard.errors import UserError, quoted, shown
from steelyard.files.finding import is_there
from steelyard.files.jsontext import json_lines
from steelyard.files.lines import LineFile
from steelyard.files.reading import opened
from steelyard.records.jsontext import compact, plain
from steelyard.scenario.base import Written
from steelyard.sim.content import digest, files_under, package_fingerprint

_ROOMS = ("files", "balance", "workload", "fleet", "posttrain", "search")  # what figures depend on beside tables


class SearchJournal:
    """Rows by key, in a file that only grows. Its first line names the search.

    A row is on its way to the disk when `put` returns, so that it survives the end of this process, however that comes.
    Half a line, which a killed process may leave, is removed. One process at a time may have the file open.
    """

    def __init__(self, path: Path, what: str) -> None:
        """``what`` names the search, in words and with a digest. The journal of another one is refused."""
        self._what = what
        self._header = compact({"journal": what})
        self._rows: dict[str, dict[str, Any]] = {}
        self._named = False  # whether the file has its first line
        if is_there(path):
            self._read(path)  # before anything is changed: the file may be another's
        self._file = LineFile(path)
        try:
            self._read(path)
        except BaseException:
            self._file.close()
            raise

    @classmethod
    @contextmanager
    def opened(cls, path: Path | None, what: str) -> Iterator[SearchJournal | None]:
        """A journal until the end of the block; None without a path."""
        if path is None:
            yield None
            return
        with cls(path, what) as journal:
            yield journal

    def __len__(self) -> int:
        return len(self._rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, key: str) -> dict[str, Any] | None:
        """The row of a key, if it is known. It is the same whether this process has put it or an earlier one."""
        return self._rows.get(key)

    def put(self, key: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a row, as JSON has it: what is not finite is None. Returns it as `get` does."""
        if not self._named:
            self._file.add(self._header)
            self._named = True
        kept: dict[str, Any] = plain(row)
        self._file.add(compact({"key": key, "row": kept}))
        self._rows[key] = kept
        return kept

    def close(self) -> None:
        """Leave the file to others. One without a row is removed."""
        self._file.close()

    def _read(self, path: Path) -> None:
        self._named = False
        self._rows.clear()
        if self._is_begun(path):
            return
        for where, line in json_lines(path, torn=True):
            if not self._named:
                self._check_name(path, line)
                self._named = True
                continue
            key, row = line.get("key"), line.get("row")
            if not isinstance(key, str) or not isinstance(row, dict):
                raise UserError(f"{where}: must have a key and a row (found {quoted(line)}); remove this line")
            self._rows[key] = row
        if not self._named:
            raise UserError(f"{shown(path)}: not the journal of a search, but blank; give another place")

    def _is_begun(self, path: Path) -> bool:
        """Whether the file is empty, or has no more than a part of the first line: its writer was killed."""
        header = self._header.encode()
        with opened(path) as file:
            return header.startswith(file.read(len(header) + 1))

    def _check_name(self, path: Path, line: Mapping[str, Any]) -> None:
        theirs = line.get("journal")
        if not isinstance(theirs, str):
            raise UserError(f"{shown(path)}: not the journal of a search (found {quoted(line)}); give another place")
        if theirs != self._what:
            raise UserError(
                f"{shown(path)}: a journal of {quoted(theirs)}, not of {quoted(self._what)}; give another place, or "
                "remove it"
            )


def point_key(scenario: Written, *more: object) -> str:
    """The key of what is found for a scenario: a digest of it, of the files that it names, and of the code."""
    return digest(content_of(scenario), _code(), *more)


def content_of(scenario: Written) -> list[object]:
    """All that a scenario says, and names, sizes and times of the files that it names."""
    written = scenario.model_dump(mode="json", exclude={"name"})
    return [written, *_files(written, scenario.base_dir)]


def _files(written: Any, base: Path) -> list[object]:
    if isinstance(written, str):
        return list(files_under(base / written)) if written and is_there(base / written) else []
    if isinstance(written, dict | list):
        each = written.values() if isinstance(written, dict) else written
        return [found for value in each for found in _files(value, base)]
    return []


@cache
def _code() -> str:
    package = Path(__file__).parents[1]
    return digest(package_fingerprint(), [files_under(package / room) for room in _ROOMS])
