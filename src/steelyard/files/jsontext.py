"""JSON from outside: bounded in nesting and in the digits of its numbers. Errors name the file and the line."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from steelyard.errors import UserError, quoted, shown
from steelyard.files.limits import MOST_DEPTH, MOST_DIGITS
from steelyard.files.nesting import TOO_DEEP, too_deep
from steelyard.files.reading import decoded, line_blocks, read_text

_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else ord(" ") for byte in range(256))
_LONG = b"0" * (MOST_DIGITS + 1)
_decode = json.JSONDecoder().raw_decode  # a third faster than json.loads
_DUBIOUS = re.compile(rf"[0-9]{{{MOST_DIGITS + 1}}}|\\u[dD]")
_ESCAPED = (b"\\ud", b"\\uD")  # half a character, unless its other half follows


def json_object(path: Path, wanted: str = "") -> dict[str, Any]:
    """The one object that a file holds."""
    data = json_document(path, wanted)
    if not isinstance(data, dict):
        raise UserError(f"{shown(path)}: must be a JSON object (found {quoted(data)})")
    return data


def json_document(path: Path, wanted: str = "") -> Any:
    """What a file holds, of any kind."""
    return parse_json(read_text(path, wanted=wanted), shown(path))


def parse_json(text: str, where: str) -> Any:
    """The value of a whole text. Keys that are given twice are refused."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(pairs)
        if len(mapping) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise UserError(f"{where}: key {quoted(twice)} is given twice")
        return mapping

    plain = _DUBIOUS.search(text) is None
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_int=None if plain else _whole(where))
    except json.JSONDecodeError as error:
        raise UserError(f"{where}:{error.lineno}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise UserError(f"{where}: {TOO_DEEP}") from None
    if text.count("{") + text.count("[") > MOST_DEPTH and too_deep(value):
        raise UserError(f"{where}: {TOO_DEEP}")
    if not plain:
        _check_text(value, where)
    return value


def json_lines(
    path: Path, limit: int | None = None, *, wanted: str = "", torn: bool = False
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's object (the first ``limit`` of them), with ``FILE:LINE`` for errors about it.

    With ``torn`` a last line that does not parse is left out, unless it is the only one: its writer was killed.
    """
    broken: UserError | None = None
    for count, (where, text, plain) in enumerate(_json_texts(path, wanted)):
        if broken is not None:
            raise broken
        if count == limit:
            return
        try:
            yield where, _row(text, where, plain)
        except _BrokenJson as error:
            if not torn or count == 0:
                raise
            broken = error


def json_row(text: str, where: str) -> dict[str, Any]:
    """The object of one line of a log."""
    return _row(text, where, _DUBIOUS.search(text) is None)


class _BrokenJson(UserError):
    """Text that does not parse."""


def _row(text: str, where: str, plain: bool) -> dict[str, Any]:
    try:
        row, end = _decode(text) if plain else json.JSONDecoder(parse_int=_whole(where)).raw_decode(text)
        if end != len(text):
            raise json.JSONDecodeError("more after the object", text, end)
    except json.JSONDecodeError as error:
        raise _BrokenJson(f"{where}: not valid JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise UserError(f"{where}: {TOO_DEEP}") from None
    if not isinstance(row, dict):
        raise UserError(f"{where}: must be a JSON object (found {quoted(row)})")
    if text.count("{") + text.count("[") > MOST_DEPTH and too_deep(row):
        raise UserError(f"{where}: {TOO_DEEP}")
    if not plain:
        _check_text(row, where)
    return row


def required(row: dict[str, Any], key: str, where: str) -> Any:
    """The value under a key that must be there."""
    if key not in row:
        raise UserError(f"{where}: {key} is missing")
    return row[key]


def _json_texts(path: Path, wanted: str) -> Iterator[tuple[str, str, bool]]:
    """Lines that are not blank: place, text, and whether its numbers and characters need no look.

    This is found out by the block, much faster than by the number.
    """
    file = shown(path)
    for first, data in line_blocks(path, wanted):
        escaped = b"\\" in data and any(each in data for each in _ESCAPED)
        plain = not escaped and _LONG not in data.translate(_DIGITS)
        for number, line in enumerate(decoded(data, path, first).split("\n"), first):
            text = line.strip()
            if text:
                yield f"{file}:{number}", text, plain


def _whole(where: str) -> Callable[[str], int]:
    """Reads whole numbers of so many digits."""

    def read(digits: str) -> int:
        if len(digits) > MOST_DIGITS + 1:
            raise UserError(f"{where}: a number of {len(digits):,} digits, of {MOST_DIGITS} at most: {quoted(digits)}")
        return int(digits)

    return read


def _check_text(value: Any, where: str) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: half a character, {quoted(error.object[error.start])}; give UTF-8 text") from None
