"""CSV from outside. Errors name the file and the line."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from steelyard.errors import UserError, quoted, shown
from steelyard.files.reading import text_lines

CsvRow = dict[str, str]


def csv_cells(text: str, where: str) -> list[str]:
    """The cells of one line."""
    try:
        return next(csv.reader([text]), [])
    except csv.Error as error:
        raise UserError(f"{where}: not valid CSV: {error} (found {quoted(text)})") from None


def csv_lines(path: Path, wanted: str = "") -> Iterator[tuple[str, list[str]]]:
    """The cells of each line that is not blank, with ``FILE:LINE`` for errors about it."""
    for number, text in text_lines(path, wanted):
        where = f"{shown(path)}:{number}"
        yield where, csv_cells(text, where)


def csv_columns(path: Path) -> list[str]:
    """The names in the first line."""
    return next((cells for _, cells in csv_lines(path)), [])


def csv_rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[str, CsvRow]]:
    """Each row by column, with ``FILE:LINE`` for errors about it."""
    lines = csv_lines(path)
    first, header = next(lines, (f"{shown(path)}:1", []))
    missing = [name for name in needed if name not in header]
    if missing:
        found = ", ".join(header[:12]) or "none"
        raise UserError(f"{first}: no column {', '.join(missing)}; found {quoted(found)}")
    for where, row in lines:
        if len(row) != len(header):
            raise UserError(f"{where}: {len(row)} columns where the first line names {len(header)}")
        yield where, dict(zip(header, row, strict=True))
