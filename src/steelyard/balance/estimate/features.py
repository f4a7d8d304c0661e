"""A history as a point in a space where near means alike.

Coordinates are whole numbers: ``UNIT`` of them are a factor of two in turns, tokens or counts, or a third in shares. No
scale is taken from data. Each tool has a direction of its own, by its share of the calls, so any set of tools will do.
"""

from __future__ import annotations

from struct import Struct

from steelyard.balance.estimate.history import History
from steelyard.balance.portable import OCTAVE, octaves_of
from steelyard.records import Floats

UNIT = OCTAVE
SHARE = 3 * UNIT  # from none to all
PLAIN = 12  # coordinates beside those of tools
_PACK = Struct(f"{PLAIN}d").pack  # takes half the time of an array made of numbers


def plain_features(history: History) -> Floats:
    """How many turns and tokens, how fast, how much was read, how many errors."""
    turns = len(history.turns)
    last = history.turns[-1]
    features = octaves_of(
        _PACK(
            1 + turns,
            1 + history.generated,
            1 + history.generated / turns,
            1 + last.generated,
            1 + history.returned / turns,
            1 + last.returned,
            1 + history.read,
            1 + history.errors_in_row,
            1 + history.repeats,
            1 + len(history.tools),
            1 + history.tool_seconds,
            1,
        )
    )
    features[-1] = SHARE * history.errors // turns
    return features


def tool_shares(history: History) -> dict[str | None, int]:
    """Each tool's share of the calls so far."""
    turns = len(history.turns)
    return {tool: SHARE * count // turns for tool, count in history.tools.items()}
