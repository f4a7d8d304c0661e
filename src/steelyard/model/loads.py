"""How often each expert was chosen, from a file."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from steelyard.errors import UserError, quoted
from steelyard.files.csvtext import csv_lines
from steelyard.files.jsontext import json_document

_WANTED = "give a JSON list of numbers, or CSV with a column `load` (and `expert`, if not in order)"


def read_loads(path: Path) -> tuple[float, ...]:
    """Each expert's load, the first expert's first."""
    found = _of_json(path) if path.suffix.lower() == ".json" else _of_csv(path)
    if not any(found):
        raise UserError(f"{path}: no expert has a load above 0; {_WANTED}")
    return found


def _of_json(path: Path) -> tuple[float, ...]:
    data = json_document(path)
    if not isinstance(data, list):
        raise UserError(f"{path}: holds no list; {_WANTED}")
    return tuple(_load(value, f"{path}: expert {i}") for i, value in enumerate(data))


def _of_csv(path: Path) -> tuple[float, ...]:
    """One number to a line, or columns with names."""
    rows = list(csv_lines(path))
    header = [name.strip() for name in rows[0][1]] if rows else []
    if "load" not in header:
        for where, row in rows:
            if len(row) != 1:
                raise UserError(f"{where}: {len(row)} columns without names; {_WANTED}")
        return tuple(_load(row[0], where) for where, row in rows)
    for where, row in rows:
        if len(row) != len(header):
            raise UserError(f"{where}: {len(row)} columns where the first line names {len(header)}")
    column = header.index("load")
    loads = [_load(row[column], where) for where, row in rows[1:]]
    return tuple(loads) if "expert" not in header else _sorted(loads, rows[1:], header.index("expert"))


def _sorted(loads: Sequence[float], rows: Sequence[tuple[str, Sequence[str]]], column: int) -> tuple[float, ...]:
    """Loads in order of the experts' numbers, which must be all of 0 and up."""
    names = [str(i) for i in range(len(rows))]
    missing = set(names)
    by_expert: dict[str, float] = {}
    for load, (where, row) in zip(loads, rows, strict=True):
        name = row[column].strip()
        if name not in missing:
            raise UserError(f"{where}: expert {quoted(name)}; give each of 0 to {len(rows) - 1} once")
        missing.remove(name)
        by_expert[name] = load
    return tuple(by_expert[name] for name in names)


def _load(value: object, place: str) -> float:
    try:
        found = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else -1.0
    except ValueError:
        found = -1.0
    if not (isfinite(found) and found >= 0):
        raise UserError(f"{place}: {quoted(value)} is no number of at least 0")
    return found
