"""Shared by the trace readers: checked values, and columns made of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import UserError, quoted
from steelyard.scenario.numbers import MOST
from steelyard.workload.columns import Workload, plain

_MOST_TIME = 1e20


def tokens(value: Any, key: str, where: str) -> int:
    """A number of tokens."""
    number = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= MOST:
        return number
    raise UserError(f"{where}: {key} must be a whole number of tokens, 0 to {MOST:,} (found {quoted(value)})")


def seconds(value: Any, key: str, where: str) -> float:
    """A time of at least zero, in seconds or parts of them. Nanoseconds since 1970 have 19 digits."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_TIME:
        return float(value)
    raise UserError(f"{where}: {key} must be a number, 0 to {_MOST_TIME:g} (found {quoted(value)})")


def recorded(path: Path, at: Sequence[float], prompt: Sequence[int], output: Sequence[int]) -> Workload:
    """Columns of a trace; lengths of 0 count as 1, and a note says so."""
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
