"""Finds shared prefixes from token ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from steelyard.workload.columns import Content

Ids = NDArray[np.int64]


class PrefixTree:
    """Token sequences as streams that branch off each other.

    A sequence follows the streams of earlier ones as far as they are equal. The rest becomes a new stream, which
    branches off where they differ.
    """

    def __init__(self) -> None:
        self._streams: list[Ids] = []
        self._branches: dict[tuple[int, int, int], int] = {}  # (stream, offset, next token) -> stream

    def add(self, ids: Ids) -> tuple[Content, int]:
        """The path through existing streams, and the new stream for the rest (-1 if nothing is left)."""
        path: list[tuple[int, int]] = []
        done, stream, offset = 0, -1, 0
        while done < len(ids):
            branch = self._branches.get((stream, offset, int(ids[done])))
            if branch is None:
                break
            stream, offset = branch, _agreement(self._streams[branch], ids[done:])
            path.append((stream, offset))
            done += offset
        if done == len(ids):
            return tuple(path), -1
        new = len(self._streams)
        self._streams.append(ids[done:])
        self._branches[stream, offset, int(ids[done])] = new
        return tuple(path), new


def shared_prefixes(sequences: Sequence[Ids], prompts: Sequence[int]) -> tuple[list[Content], list[int], int]:
    """Content and stream of each request, and the number of streams.

    A sequence is a prompt and, if known, its output; ``prompts`` are the lengths of the prompts. An output that starts
    like another request's and then differs is not shared.
    """
    tree = PrefixTree()
    contents: list[Content] = []
    streams: list[int] = []
    for ids, prompt in zip(sequences, prompts, strict=True):
        path, new = tree.add(ids)
        content = _clipped(path, prompt)
        contents.append(content)
        if new < 0:
            streams.append(path[-1][0] if len(ids) > prompt and len(path) == len(content) else -1)
        else:
            streams.append(new if sum(k for _, k in path) <= prompt else -1)
    used = sorted({stream for content in contents for stream, _ in content})
    number = {stream: i for i, stream in enumerate(used)}
    renamed: list[Content] = [tuple((number[s], k) for s, k in content) for content in contents]
    return renamed, [number.get(stream, -1) for stream in streams], len(used)


def _agreement(left: Ids, right: Ids) -> int:
    """How many leading tokens are equal."""
    n = min(len(left), len(right))
    differences = np.flatnonzero(left[:n] != right[:n])
    return int(differences[0]) if len(differences) else n


def _clipped(path: Content, tokens: int) -> Content:
    """The part of a path that covers its first ``tokens`` tokens."""
    clipped = []
    for stream, length in path:
        if tokens <= 0:
            break
        clipped.append((stream, min(length, tokens)))
        tokens -= length
    return tuple(clipped)
