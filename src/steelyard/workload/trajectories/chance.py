"""Counter-based random draws: each depends only on a key and a place, never on other draws.

A key identifies a trajectory; a place is a turn and a purpose. Words come from SplitMix64's finaliser, which passes the
usual test batteries on such counters, and each gives four draws of 16 bits. A draw is a level: one of 65,536 equal
parts of probability (see quantiles.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steelyard.records import Floats

Words = NDArray[np.uint64]
Levels = NDArray[np.intp]

LEVELS = 1 << 16  # of a draw of 16 bits
_MASK = (1 << 64) - 1  # of a 64-bit word
_STRIDE = 0x9E3779B97F4A7C15  # 2 ** 64 over the golden ratio
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = tuple(np.uint64(shift) for shift in (30, 27, 31))
_LANES = tuple(np.uint64(shift) for shift in (0, 16, 32, 48))
_LANE = np.uint64(LEVELS - 1)


class TurnDraws(NamedTuple):
    """One turn's draws, a column each; a turn that ends a trajectory does not use all of them."""

    thinking: Levels
    call: Levels
    tool: Levels
    outcome: Levels
    latency: Levels
    returned: Levels
    insight: Levels
    quitting: Levels


def keys(first: Words | int, *parts: Words | int) -> Words:
    """One column of keys from numbers or columns of them; their order matters."""
    key = _mixed(_words(first))
    for part in parts:
        key = _mixed(key + np.uint64(_STRIDE) ^ _mixed(_words(part)))
    return key


def levels(key: Words, place: int) -> tuple[Levels, ...]:
    """Four independent draws of each key at one place."""
    word = _mixed(key + np.uint64((place + 1) * _STRIDE & _MASK))
    return tuple((word >> lane & _LANE).astype(np.intp) for lane in _LANES)


def deal(key: Words, turn: int) -> TurnDraws:
    """The draws of a turn."""
    return TurnDraws(*levels(key, 2 * turn), *levels(key, 2 * turn + 1))


def share(level: Levels) -> Floats:
    """A level as a number between 0 and 1: the middle of its part."""
    return np.asarray((level + 0.5) * (1 / LEVELS))


def _words(part: Words | int) -> Words:
    return np.array([part & _MASK], dtype=np.uint64) if isinstance(part, int) else part


def _mixed(words: Words) -> Words:
    words = (words ^ words >> _SHIFTS[0]) * _FIRST
    words = (words ^ words >> _SHIFTS[1]) * _SECOND
    return words ^ words >> _SHIFTS[2]
