"""Captures of a live engine: its requests, with shared prefixes and consecutive turns."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.errors import UserError, quoted
from steelyard.files.jsontext import json_lines, json_object, required
from steelyard.records import Ints
from steelyard.workload.columns import Content, Workload
from steelyard.workload.traces.lines import recorded, seconds, tokens


def read_capture(path: Path, limit: int | None = None) -> Workload:
    """The requests of a NAME.workload.json. A follower continues its parent's conversation."""
    rows = _rows(path)[:limit]
    at: list[float] = []
    think: list[float] = []
    prompt: list[int] = []
    output: list[int] = []
    for where, row in rows:
        follows = row.get("after") is not None
        at.append(math.nan if follows else seconds(required(row, "at", where), "at", where))
        think.append(seconds(row.get("think", 0.0), "think", where) if follows else 0.0)
        prompt.append(tokens(required(row, "prompt", where), "prompt", where))
        output.append(tokens(required(row, "output", where), "output", where))
    work = recorded(path, at, prompt, output)
    work.think = np.array(think)
    work.after = _parents(rows)
    _tell_sharing(work, rows)
    return work


def read_given(asked: Path, answered: Path) -> Ints:
    """Cached prompt tokens of each request of a NAME.workload.json; -1 where not recorded."""
    found = {
        str(required(row, "id", where)): tokens(required(row, "cached", where), "cached", where)
        for where, row in json_lines(answered, None)
    }
    return np.array([found.get(str(row.get("id", i)), -1) for i, (_, row) in enumerate(_rows(asked))], dtype=np.int64)


def read_sent(asked: Path, answered: Path) -> Ints:
    """The position of each request of a NAME.workload.json in the order of submission; unknown ones last."""
    at = {
        str(required(row, "id", where)): seconds(required(row, "at", where), "at", where)
        for where, row in json_lines(answered, None)
    }
    sent = np.array([at.get(str(row.get("id", i)), math.inf) for i, (_, row) in enumerate(_rows(asked))])
    return np.argsort(np.argsort(sent, kind="stable"), kind="stable")


def _rows(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The requests of a workload file, or of a recorder's lines in order of submission."""
    if ".jsonl" in path.suffixes:
        rows = sorted(json_lines(path, None), key=lambda row: seconds(required(row[1], "at", row[0]), "at", row[0]))
        began = rows[0][1]["at"] if rows else 0.0
        return [(where, {**row, "at": row["at"] - began}) for where, row in rows]
    requests = json_object(path).get("requests")
    if not isinstance(requests, list):
        raise UserError(f"{path}: must be a JSON object with a list of `requests`")
    for i, row in enumerate(requests):
        if not isinstance(row, dict):
            raise UserError(f"{path}: requests[{i}]: must be a JSON object (found {quoted(row)})")
    return [(f"{path}: requests[{i}]", row) for i, row in enumerate(requests)]


def _parents(rows: list[tuple[str, dict[str, Any]]]) -> Ints:
    """The row each follower waits for, which must come before it."""
    place: dict[str, int] = {}
    after = np.full(len(rows), -1, dtype=np.int64)
    for i, (where, row) in enumerate(rows):
        parent = row.get("after")
        if parent is not None:
            if str(parent) not in place:
                raise UserError(f"{where}: after {quoted(parent)} is not the id of an earlier request")
            after[i] = place[str(parent)]
        name = str(row.get("id", i))
        if name in place:
            raise UserError(f"{where}: id {quoted(name)} is taken by an earlier request; every request needs its own")
        place[name] = i
    return after


def _tell_sharing(work: Workload, rows: list[tuple[str, dict[str, Any]]]) -> None:
    """A single follower continues its parent's stream; several branch off into their own."""
    prefixes: dict[str, int] = {}
    children = Counter(work.after.tolist())
    contents: list[Content] = []
    for i, (where, row) in enumerate(rows):
        parent = int(work.after[i])
        if parent >= 0:
            contents.append(_continued(work, contents[parent], parent, i, where))
        else:
            contents.append(_prefix(row.get("prefix"), prefixes, work, i, where))
        if parent >= 0 and children[parent] == 1:
            work.stream[i] = work.stream[parent]
        elif children[i]:
            work.stream[i] = work.streams
            work.streams += 1
    work.content = contents if any(contents) else None


def _prefix(prefix: Any, prefixes: dict[str, int], work: Workload, row: int, where: str) -> Content:
    """The shared prefix [key, tokens] of a request; a new key gets a stream."""
    if prefix is None:
        return ()
    if not isinstance(prefix, list) or len(prefix) != 2:
        raise UserError(f"{where}: prefix must be [key, tokens] (found {quoted(prefix)})")
    length = tokens(prefix[1], "prefix", where)
    if length > work.prompt[row]:
        raise UserError(f"{where}: prefix of {length} tokens is longer than the prompt ({work.prompt[row]})")
    if length == 0:
        return ()
    key = str(prefix[0])
    if key not in prefixes:
        prefixes[key] = work.streams
        work.streams += 1
    return ((prefixes[key], length),)


def _continued(work: Workload, content: Content, parent: int, child: int, where: str) -> Content:
    """The parent's whole sequence, with which its follower's prompt starts."""
    total = int(work.prompt[parent] + work.output[parent])
    if work.prompt[child] < total:
        raise UserError(
            f"{where}: prompt of {work.prompt[child]} tokens is shorter than the prompt and output that it "
            f"follows ({total})"
        )
    stream = int(work.stream[parent])
    lead = tuple(segment for segment in content if segment[0] != stream)
    return (*lead, (stream, total - sum(length for _, length in lead)))
