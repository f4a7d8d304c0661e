"""Reading CSV tables of other programs, with errors that name the line."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from steelyard.errors import UserError
from steelyard.records.lines import read_text

Row = dict[str, str]


def csv_columns(path: Path) -> list[str]:
    """The names in the first line."""
    return next(csv.reader([read_text(path).partition("\n")[0]]), [])


def csv_rows(path: Path, needed: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Each row by column, with ``FILE:LINE`` for errors about it."""
    reader = csv.DictReader(read_text(path).splitlines())
    missing = [name for name in needed if name not in (reader.fieldnames or ())]
    if missing:
        raise UserError(
            f"{path}:1: no column {', '.join(missing)}; found {', '.join((reader.fieldnames or ())[:12]) or 'none'}"
        )
    for row in reader:
        yield f"{path}:{reader.line_num}", row


def number(row: Row, column: str, where: str) -> float:
    """A value that must be a number of at least zero."""
    text = row[column]
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UserError(f"{where}: {column} must be a number, not negative (found {text!r})")
    return value


def whole(row: Row, column: str, where: str) -> int:
    """A value that must be a whole number of at least zero."""
    value = number(row, column, where)
    if not value.is_integer():
        raise UserError(f"{where}: {column} must be a whole number (found {row[column]!r})")
    return int(value)
