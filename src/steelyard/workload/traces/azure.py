"""Azure's LLM inference traces: CSV of TIMESTAMP, ContextTokens, GeneratedTokens."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

from steelyard.errors import UserError, quoted
from steelyard.files.csvtext import csv_cells
from steelyard.files.reading import text_lines
from steelyard.workload.columns import Workload
from steelyard.workload.traces.lines import recorded, tokens

_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?")
_DIGITS = 12  # of a number of tokens; more are refused as text is


def read_azure(path: Path, limit: int | None = None) -> Workload:
    """Requests at seconds after the trace's earliest one."""
    lines = text_lines(path)
    header = next(lines, None)
    if header is None:
        return recorded(path, [], [], [])
    order = _column_order(header[1], f"{path}:{header[0]}")
    stamps: list[int] = []
    prompt: list[int] = []
    output: list[int] = []
    for number, text in lines:
        if limit is not None and len(stamps) >= limit:
            break
        where = f"{path}:{number}"
        cells = csv_cells(text, where)
        if len(cells) <= max(order):
            raise UserError(
                f"{where}: has {len(cells)} columns; {', '.join(_COLUMNS)} are needed (found {text[:60]!r})"
            )
        stamp, asked, given = (cells[i].strip() for i in order)
        stamps.append(_nanoseconds(stamp, where))
        prompt.append(tokens(_number(asked), "ContextTokens", where))
        output.append(tokens(_number(given), "GeneratedTokens", where))
    start = min(stamps, default=0)
    return recorded(path, [(stamp - start) / 1e9 for stamp in stamps], prompt, output)


def _column_order(header: str, where: str) -> list[int]:
    names = [name.strip().lower() for name in csv_cells(header, where)]
    missing = [column for column in _COLUMNS if column.lower() not in names]
    if missing:
        raise UserError(f"{where}: the header lacks {', '.join(missing)} (found {header[:60]!r})")
    return [names.index(column.lower()) for column in _COLUMNS]


def _nanoseconds(text: str, where: str) -> int:
    """Whole nanoseconds: floating-point dates would lose the traces' seven decimals."""
    match = _STAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        day, clock, fraction, zone = match.groups()
        moment = datetime.fromisoformat(f"{day} {clock}{zone or '+00:00'}".replace("Z", "+00:00"))
    except ValueError:
        raise UserError(
            f"{where}: TIMESTAMP must read like 2023-11-16 18:15:46.6805900 (found {quoted(text)})"
        ) from None
    whole = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * 10**9 + int((fraction or "0").ljust(9, "0"))


def _number(text: str) -> int | str:
    return int(text) if len(text) <= _DIGITS and text.isdecimal() else text
