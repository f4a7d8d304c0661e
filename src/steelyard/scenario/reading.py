"""Reads a scenario file as plain data. Error messages have the line."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from steelyard.errors import UserError, quoted, shown
from steelyard.files.jsontext import parse_json
from steelyard.files.limits import MOST_SCENARIO_BYTES
from steelyard.files.reading import read_text
from steelyard.files.yamltext import Document

LineOf = Callable[[tuple[str | int, ...]], int | None]


def read_mapping(path: Path) -> tuple[dict[str, Any], LineOf]:
    """A file's mapping, and the line of a key path, or of the longest part of it that exists."""
    text, where = read_text(path, MOST_SCENARIO_BYTES, "a scenario file (YAML or JSON)"), shown(path)
    if path.suffix.lower() == ".json":
        data = parse_json(text, where) if text.strip() else None
        line_of: LineOf = partial(_line_in_json, text)  # which can be pickled, for worker processes
    else:
        document = Document(text, where)
        data, line_of = document.data, document.line_of
    if data is None:
        raise UserError(f"{where}: is empty; a scenario needs at least model, fleet and workload")
    if not isinstance(data, dict):
        held = "a list" if isinstance(data, list) else f"only {quoted(data)}"
        raise UserError(f"{where}: holds {held}; a scenario is a mapping with model, fleet and workload")
    return data, line_of


def _line_in_json(text: str, key: tuple[str | int, ...]) -> int | None:
    """JSON is YAML, but for tabs and for characters that YAML does not have."""
    try:
        return Document(text, "").line_of(key)
    except UserError:
        return None
