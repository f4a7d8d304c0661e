"""A history as a point in a space where near means alike.

One unit is a factor of two in turns, tokens or counts, and a third in shares; no unit is taken from data. Tools
span directions of their own, by the share of calls they had, so any set of tools will do.
"""

from __future__ import annotations

from math import log2

from steelyard.balance.estimate.history import History

SHARE = 3.0  # units from none to all
PLAIN = 12  # coordinates beside the tools'


def plain_features(history: History) -> list[float]:
    """How far, how fast, how much was read, how it goes."""
    turns = len(history.turns)
    last = history.turns[-1]
    return [
        log2(1 + turns),
        log2(1 + history.generated),
        log2(1 + history.generated / turns),
        log2(1 + last.generated),
        log2(1 + history.returned / turns),
        log2(1 + last.returned),
        log2(1 + history.read),
        log2(1 + history.errors_in_row),
        log2(1 + history.repeats),
        log2(1 + len(history.tools)),
        log2(1 + history.tool_seconds),
        SHARE * history.errors / turns,
    ]


def tool_shares(history: History) -> dict[str | None, float]:
    """Each tool's share of the calls so far, in units."""
    turns = len(history.turns)
    return {tool: SHARE * count / turns for tool, count in history.tools.items()}
