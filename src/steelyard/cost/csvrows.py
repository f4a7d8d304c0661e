"""Numbers in CSV tables of other programs, with errors that name the line."""

from __future__ import annotations

from steelyard.errors import UserError, quoted
from steelyard.files.csvtext import CsvRow


def number(row: CsvRow, column: str, where: str) -> float:
    """A value that must be a number of at least zero."""
    text = row[column]
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UserError(f"{where}: {column} must be a number, not negative (found {quoted(text)})")
    return value


def whole(row: CsvRow, column: str, where: str) -> int:
    """A value that must be a whole number of at least zero."""
    value = number(row, column, where)
    if not value.is_integer():
        raise UserError(f"{where}: {column} must be a whole number (found {quoted(row[column])})")
    return int(value)
