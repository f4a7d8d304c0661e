"""Who is on one replica, as a row of bins: how many are likely to have how many tokens left."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from steelyard.balance.route.prospect import Array

BINS = 64
PEOPLE, LOAD, CONTEXT = range(3)  # of those in a bin: their number, seconds they add to each step, tokens of context


class _Member:
    """One trajectory: its equally likely ends in rising order, and the bins of those that are likely still."""

    __slots__ = ("bins", "context", "ends", "load")

    def __init__(self, ends: list[float], bins: list[int], load: float, context: float) -> None:
        self.ends = ends
        self.bins = bins
        self.load = load
        self.context = context


class Crowd:
    """Trajectories on a replica, each with its equally likely ends, counted in tokens that were decoded there.

    As decoding goes on, ends that a trajectory has passed are no longer likely, and the others are the more so; one
    that has passed them all may end at any time. Bins have a width in tokens and begin at ``seen``, where decoding
    was when they were last filled. Each comes and goes alone and has a handful of ends, for which plain numbers are
    faster than arrays.
    """

    __slots__ = ("_members", "_row", "row", "seen")

    def __init__(self) -> None:
        self._row = array("d", bytes(8 * 3 * BINS))
        self.row: Array = np.frombuffer(self._row).reshape(3, BINS)
        self.seen = 0.0
        self._members: dict[str, _Member] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def count(self, name: str, tokens: Array, load: float, context: float, decoded: float, width: float) -> None:
        """One more is there from now on, with so many tokens to go; it adds ``load`` seconds to each step.

        Its last end must lie within the bins.
        """
        ends, seen = [each + decoded for each in tokens.tolist()], self.seen
        who = self._members[name] = _Member(ends, [int((end - seen) / width) for end in ends], load, context)
        self._add(who, 1.0 / len(ends))

    def discount(self, name: str) -> None:
        """One less."""
        who = self._members.pop(name)
        if self._members:
            self._add(who, -1.0 / len(who.bins))
        else:
            self.row[:] = 0.0  # of what rounding has left

    def fill(self, decoded: float, width: float) -> None:
        """Fill all bins anew, as seen from so many tokens on."""
        self.seen = decoded
        self.row[:] = 0.0
        for who in self._members.values():
            who.bins = [int((end - decoded) / width) for end in who.ends if end > decoded] or [0]
            self._add(who, 1.0 / len(who.bins))

    def _add(self, who: _Member, share: float) -> None:
        """Add what one counts by to the bins it may end in, the same share to each."""
        row, load, context = self._row, share * who.load, share * who.context
        for at in who.bins:
            row[at] += share
            row[at + BINS] += load
            row[at + 2 * BINS] += context
