"""Mooncake's traces: JSON lines whose ``hash_ids`` name the 512-token blocks of each prompt.

An id stands for a block *and everything before it*, so requests with the same first k ids share exactly those blocks.
The trace does not tell which output became part of a later prompt: such tokens count as new.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

from steelyard.errors import UserError
from steelyard.files.jsontext import json_lines, required
from steelyard.workload.columns import Content, Workload
from steelyard.workload.traces.lines import recorded, seconds, tokens

BLOCK = 512  # tokens, as Mooncake's traces define it


def read_mooncake(path: Path, limit: int | None = None) -> Workload:
    """Requests with their shared leading blocks as content."""
    at: list[float] = []
    prompt: list[int] = []
    output: list[int] = []
    blocks: list[list[int]] = []
    before: dict[int, int] = {}
    for where, row in json_lines(path, limit):
        at.append(seconds(required(row, "timestamp", where), "timestamp", where) / 1000)
        prompt.append(tokens(required(row, "input_length", where), "input_length", where))
        output.append(tokens(required(row, "output_length", where), "output_length", where))
        blocks.append(_checked(required(row, "hash_ids", where), prompt[-1], before, where))
    work = recorded(path, at, prompt, output)
    contents, work.streams = _contents(blocks, prompt)
    work.content = contents if any(contents) else None
    return work


def _checked(ids: Any, length: int, before: dict[int, int], where: str) -> list[int]:
    """A prompt's ids: no more than its tokens fill blocks, and each with the same predecessor each time; ``before``
    maps an id to it."""
    if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
        raise UserError(f"{where}: hash_ids must be a list of whole numbers (found {str(ids)[:40]!r})")
    most = -(-max(length, 1) // BLOCK)  # an empty prompt counts as one token
    if len(ids) > most:
        raise UserError(
            f"{where}: hash_ids names {len(ids):,} blocks, but an input_length of {length:,} fills at most {most:,} of "
            f"{BLOCK} tokens; give one id to each block"
        )
    previous = -1
    for each in ids:
        if before.setdefault(each, previous) != previous:
            raise UserError(f"{where}: hash id {each} follows another block than before; equal ids are equal prefixes")
        previous = each
    return ids


def _contents(blocks: list[list[int]], prompt: list[int]) -> tuple[list[Content], int]:
    """Each prompt's shared blocks; a run of blocks shared by the same requests is one stream."""
    users = Counter(each for ids in blocks for each in ids)
    streams: dict[int, int] = {}
    contents = []
    for ids, length in zip(blocks, prompt, strict=True):
        content = []
        left = length
        for count, run in groupby(ids, key=users.__getitem__):
            if count == 1 or left <= 0:
                break
            first, *others = run
            span = min(left, BLOCK * (1 + len(others)))
            content.append((streams.setdefault(first, len(streams)), span))
            left -= span
        contents.append(tuple(content))
    return contents, len(streams)
