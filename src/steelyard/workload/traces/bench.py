"""Benchmark-style JSON lines: one request per line, under the names that serving benchmarks use.

Lengths are counts or token ids; ids also tell which prompts share a prefix. Arrival times are optional.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.files.jsontext import json_lines
from steelyard.workload.columns import Workload
from steelyard.workload.traces.lines import recorded, seconds, tokens
from steelyard.workload.traces.prefixes import Ids, shared_prefixes

_PROMPT = (
    "prompt_len",
    "input_len",
    "prompt_tokens",
    "input_tokens",
    "prompt_length",
    "input_length",
    "input_toks",
)
_OUTPUT = (
    "output_len",
    "output_tokens",
    "output_length",
    "output_toks",
    "completion_tokens",
    "generated_tokens",
    "expected_output_len",
    "max_tokens",
)
_PROMPT_IDS = ("prompt_token_ids", "prompt_ids", "input_tok_ids", "input_ids", "prompt")
_OUTPUT_IDS = ("output_token_ids", "output_ids", "output_tok_ids")
_TIMES = {
    "at": 1.0,
    "arrival": 1.0,
    "arrival_time": 1.0,
    "timestamp": 1.0,
    "arrival_time_ms": 1e-3,
    "timestamp_ms": 1e-3,
    "arrival_time_ns": 1e-9,
}
_YEAR = 3.2e7  # seconds; a first arrival later than that is a date, not a moment of the run


def read_bench(path: Path, limit: int | None = None) -> Workload:
    """Requests with all that the lines say about them."""
    at: list[float] = []
    prompt: list[int] = []
    output: list[int] = []
    sequences: list[Ids] = []
    for where, row in json_lines(path, limit):
        asked, given = _ids(row, _PROMPT_IDS, where), _ids(row, _OUTPUT_IDS, where)
        prompt.append(_length(row, _PROMPT, asked, "prompt", where))
        output.append(_length(row, _OUTPUT, given, "output", where))
        at.append(_time(row, where))
        if at and math.isnan(at[0]) != math.isnan(at[-1]):
            raise UserError(f"{where}: either every line gives an arrival time ({', '.join(_TIMES)}) or none does")
        sequences.append(_sequence(asked, given))
    first = min(at, default=0.0)
    work = recorded(path, [each - first for each in at] if first > _YEAR else at, prompt, output)
    contents, streams, count = shared_prefixes(sequences, prompt)
    if any(contents):
        work.content, work.stream, work.streams = contents, np.array(streams, dtype=np.int64), count
    return work


def _ids(row: dict[str, Any], names: tuple[str, ...], where: str) -> Ids | None:
    for name in names:
        ids = row.get(name)
        if not isinstance(ids, list):
            continue
        if not all(isinstance(each, int) and 0 <= each < 2**32 for each in ids):
            raise UserError(f"{where}: {name} must be a list of token ids (found {str(ids)[:40]!r})")
        return np.array(ids, dtype=np.int64)
    return None


def _length(row: dict[str, Any], names: tuple[str, ...], ids: Ids | None, what: str, where: str) -> int:
    key = next((name for name in names if name in row), None)
    if key is not None:
        length = tokens(row[key], key, where)
        if ids is not None and len(ids) != length:
            raise UserError(f"{where}: {key} is {length}, but the {what} has {len(ids)} token ids")
        return length
    if ids is not None:
        return len(ids)
    text = " is text without a token count" if isinstance(row.get(what), str) else " length is missing"
    raise UserError(f"{where}: the {what}{text}; give one of {', '.join(names)}")


def _time(row: dict[str, Any], where: str) -> float:
    for name, unit in _TIMES.items():
        if row.get(name) is not None:
            return seconds(row[name], name, where) * unit
    return math.nan


def _sequence(asked: Ids | None, given: Ids | None) -> Ids:
    if asked is None:
        return np.zeros(0, dtype=np.int64)
    return asked if given is None else np.concatenate([asked, given])
