"""Text files read line by line, gzipped or not. Errors name the file and the line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steelyard.errors import UserError

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
