"""Who is on one replica, as a row of bins: how many are likely to have how many tokens left."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

BINS = 64
_ROW = Struct(f"{3 * BINS}d")  # packs plain numbers in half the time that arrays take to take them in
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

    __slots__ = ("_context", "_load", "_people", "members", "seen")

    def __init__(self) -> None:
        self.seen = 0.0
        self.members: dict[str, _Member] = {}
        self._empty()

    def count(
        self, name: str, tokens: Sequence[float], load: float, context: float, decoded: float, width: float
    ) -> None:
        """One more is there from now on, with so many tokens to go; it adds ``load`` seconds to each step.

        Its last end must lie within the bins.
        """
        ends, seen = [each + decoded for each in tokens], self.seen
        who = self.members[name] = _Member(ends, [int((end - seen) / width) for end in ends], load, context)
        self._add(who, 1.0 / len(ends))

    def discount(self, name: str) -> None:
        """One less."""
        who = self.members.pop(name)
        if self.members:
            self._add(who, -1.0 / len(who.bins))
        else:
            self._empty()  # of what rounding has left

    def fill(self, decoded: float, width: float) -> None:
        """Fill all bins anew, as seen from so many tokens on."""
        self.seen = decoded
        self._empty()
        for who in self.members.values():
            who.bins = [int((end - decoded) / width) for end in who.ends if end > decoded] or [0]
            self._add(who, 1.0 / len(who.bins))

    def write(self, row: memoryview) -> None:
        """By term, what is in each bin, into as many doubles."""
        _ROW.pack_into(row, 0, *self._people, *self._load, *self._context)

    def _empty(self) -> None:
        self._people, self._load, self._context = [0.0] * BINS, [0.0] * BINS, [0.0] * BINS

    def _add(self, who: _Member, share: float) -> None:
        """Add what one counts by to the bins it may end in, the same share to each."""
        people, loads, contexts = self._people, self._load, self._context
        load, context = share * who.load, share * who.context
        for at in who.bins:
            people[at] += share
            loads[at] += load
            contexts[at] += context
