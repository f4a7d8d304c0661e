"""Tables of a result as CSV, in parts. Text that a spreadsheet would take for a formula is marked as text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from steelyard.files.tables import table_rows

TABLES = ("requests", "steps", "trajectories")
_ROWS = 20_000  # at a time
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_of(path: Path) -> Iterator[str]:
    """A Parquet table as CSV."""
    return map(_lines, table_rows(path, _ROWS))


def _lines(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(each) for each in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    """A cell. A name such as ``=1+1`` gets an apostrophe, which spreadsheets take as: this is text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
