"""What the readers have in common: lines with their numbers, and values checked where they stand."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.scenario.base import MOST
from steelyard.workload.columns import Workload, plain

_GZIP_MAGIC = b"\x1f\x8b"


def read_text(path: Path) -> str:
    """The file's text, unpacked if it is gzipped."""
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if data.startswith(_GZIP_MAGIC) else data).decode("utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; CSV, JSON or JSON lines are read here, gzipped or not") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(f"{path}: cannot be read: {reason}") from None


def json_object(path: Path) -> dict[str, Any]:
    """The one object that a file holds."""
    try:
        data = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not valid JSON: {error.msg}") from None
    if not isinstance(data, dict):
        raise UserError(f"{path}: must be a JSON object (found {str(data)[:40]!r})")
    return data


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, with their numbers."""
    for number, line in enumerate(read_text(path).split("\n"), 1):
        text = line.strip()
        if text:
            yield number, text


def json_lines(path: Path, limit: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's object, with ``FILE:LINE`` for errors about it."""
    for count, (number, text) in enumerate(text_lines(path)):
        if limit is not None and count >= limit:
            return
        where = f"{path}:{number}"
        try:
            row = json.loads(text)
        except json.JSONDecodeError as error:
            raise UserError(f"{where}: not valid JSON: {error.msg} at column {error.colno}") from None
        if not isinstance(row, dict):
            raise UserError(f"{where}: must be a JSON object (found {text[:40]!r})")
        yield where, row


def required(row: dict[str, Any], key: str, where: str) -> Any:
    """The value under a key that must be there."""
    if key not in row:
        raise UserError(f"{where}: {key} is missing")
    return row[key]


def tokens(value: Any, key: str, where: str) -> int:
    """A number of tokens."""
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MOST:
        return number
    raise UserError(f"{where}: {key} must be a whole number of tokens, 0 to {MOST:,} (found {value!r})")


def seconds(value: Any, key: str, where: str) -> float:
    """A time of at least zero."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    raise UserError(f"{where}: {key} must be a number, not negative (found {value!r})")


def recorded(path: Path, at: Sequence[float], prompt: Sequence[int], output: Sequence[int]) -> Workload:
    """Columns of a trace that is read; lengths of 0 count as 1, and a note says so."""
    if not prompt:
        raise UserError(f"{path}: the trace holds no requests")
    lengths = {"a prompt": np.array(prompt, dtype=np.int64), "an output": np.array(output, dtype=np.int64)}
    work = plain(
        np.array(at, dtype=np.float64),
        np.maximum(lengths["a prompt"], 1),
        np.maximum(lengths["an output"], 1),
    )
    for name, column in lengths.items():
        empty = int((column < 1).sum())
        if empty:
            work.notes.append(f"{path.name}: {name} of 0 tokens counts as 1 (requests: {empty})")
    return work
