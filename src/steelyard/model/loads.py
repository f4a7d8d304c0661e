"""How often each expert was chosen, from a file."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from steelyard.errors import UserError

_WANTED = "give a JSON list of numbers, or CSV with a column `load` (and `expert`, if not in order)"


def read_loads(path: Path) -> tuple[float, ...]:
    """Each expert's load, the first expert's first."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from None
    found = _of_json(text, path) if path.suffix.lower() == ".json" else _of_csv(text, path)
    if not any(found):
        raise UserError(f"{path}: no expert has a load above 0; {_WANTED}")
    return found


def _of_json(text: str, path: Path) -> tuple[float, ...]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    if not isinstance(data, list):
        raise UserError(f"{path}: holds no list; {_WANTED}")
    return tuple(_load(value, f"{path}: expert {i}") for i, value in enumerate(data))


def _of_csv(text: str, path: Path) -> tuple[float, ...]:
    """One number to a line, or columns with names."""
    rows = [(line, row) for line, row in enumerate(csv.reader(text.splitlines()), 1) if row]
    header = [name.strip() for name in rows[0][1]] if rows else []
    if "load" not in header:
        for line, row in rows:
            if len(row) != 1:
                raise UserError(f"{path}:{line}: {len(row)} columns without names; {_WANTED}")
        return tuple(_load(row[0], f"{path}:{line}") for line, row in rows)
    for line, row in rows:
        if len(row) != len(header):
            raise UserError(f"{path}:{line}: {len(row)} columns where the first line names {len(header)}")
    column = header.index("load")
    loads = [_load(row[column], f"{path}:{line}") for line, row in rows[1:]]
    return tuple(loads) if "expert" not in header else _sorted(loads, rows[1:], header.index("expert"), path)


def _sorted(
    loads: Sequence[float], rows: Sequence[tuple[int, Sequence[str]]], column: int, path: Path
) -> tuple[float, ...]:
    """Loads in order of the experts' numbers, which must be all of 0 and up."""
    by_expert: dict[str, float] = {}
    for load, (line, row) in zip(loads, rows, strict=True):
        name = row[column].strip()
        if name in by_expert or not (name.isdecimal() and name == str(int(name)) and int(name) < len(rows)):
            raise UserError(f"{path}:{line}: expert {name!r}; give each of 0 to {len(rows) - 1} once")
        by_expert[name] = load
    return tuple(by_expert[str(i)] for i in range(len(rows)))


def _load(value: object, place: str) -> float:
    try:
        found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
    except ValueError:
        found = -1.0
    if not (isfinite(found) and found >= 0):
        raise UserError(f"{place}: {value!r} is no number of at least 0")
    return found
