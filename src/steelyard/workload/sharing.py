"""Shared parts of prompts: prefixes of groups of requests, and growing conversations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from steelyard.records import Ints
from steelyard.workload.columns import Content


@dataclass
class Sharing:
    """The columns that define what is shared."""

    prompt: Ints
    content: list[Content] | None
    stream: Ints
    streams: int


def unshared(prompt: Ints) -> Sharing:
    """No prompt shares anything."""
    return Sharing(prompt, None, np.full(len(prompt), -1, dtype=np.int64), 0)


def with_prefix(prompt: Ints, tokens: int, groups: int, group: Ints) -> Sharing:
    """Prompts that start with their group's prefix and have at least one token after it."""
    openings: list[Content] = [((i, tokens),) for i in range(groups)]
    content = [openings[i] for i in group.tolist()]
    return Sharing(np.maximum(prompt, tokens + 1), content, np.full(len(prompt), -1, dtype=np.int64), groups)


def conversations(turns: Ints, fresh: Ints, output: Ints, tokens: int, groups: int, group: Ints) -> Sharing:
    """Sessions, turn by turn: a prompt is the system prompt, all earlier turns with outputs, and new tokens.

    ``turns`` and ``group`` are per session, ``fresh`` and ``output`` per turn; ``tokens`` is the length of the system
    prompt (0 for none). Each turn extends its session's stream by new tokens and output.
    """
    session = np.repeat(np.arange(len(turns)), turns)
    total = np.cumsum(fresh + output) - (fresh + output)
    first = np.cumsum(turns) - turns
    before = total - np.repeat(total[first], turns)
    openings: list[Content] = [((i, tokens),) for i in range(groups)] if tokens else [()]
    streams = groups if tokens else 0
    own = session + streams
    rows = zip(group[session].tolist(), own.tolist(), before.tolist(), strict=True)
    content = [(*openings[g], (s, b)) if b else openings[g] for g, s, b in rows]
    alone = np.repeat(turns == 1, turns)
    shared = bool(tokens) or not alone.all()
    return Sharing(
        prompt=tokens + before + fresh,
        content=content if shared else None,
        stream=np.where(alone, -1, own),
        streams=streams + len(turns),
    )
