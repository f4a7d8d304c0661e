"""The trajectories on one replica as bins: the expected number of trajectories by remaining tokens."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

BINS = 64
_ROW = Struct(f"{3 * BINS}d")  # packing is twice as fast as assigning lists to an array
COUNT, LOAD, CONTEXT = range(3)  # of trajectories in a bin: their number, seconds added to each step, context tokens


class _Member:
    """One trajectory: its equally likely ends in rising order, and the bins of the ends that it has not passed."""

    __slots__ = ("bins", "context", "ends", "load")

    def __init__(self, ends: list[float], bins: list[int], load: float, context: float) -> None:
        self.ends = ends
        self.bins = bins
        self.load = load
        self.context = context


class ReplicaBins:
    """Trajectories on a replica, each with its equally likely ends, in tokens that were decoded there.

    During decoding a trajectory passes some of its ends, and its other ends become more likely. A trajectory that has
    passed all of them may end at any time. Bins have a width in tokens and begin at ``seen``, the tokens decoded when
    they were last filled. Plain lists are used, which are faster than arrays for a few ends at a time.
    """

    __slots__ = ("_context", "_counts", "_load", "members", "seen")

    def __init__(self) -> None:
        self.seen = 0.0
        self.members: dict[str, _Member] = {}
        self._empty()

    def count(
        self, name: str, tokens: Sequence[float], load: float, context: float, decoded: float, width: float
    ) -> None:
        """Add a trajectory with these equally likely numbers of tokens left. It adds ``load`` seconds to each step.

        Its last end must lie within the bins.
        """
        ends, seen = [each + decoded for each in tokens], self.seen
        member = self.members[name] = _Member(ends, [int((end - seen) / width) for end in ends], load, context)
        self._add(member, 1.0 / len(ends))

    def discount(self, name: str) -> None:
        """Remove a trajectory."""
        member = self.members.pop(name)
        if self.members:
            self._add(member, -1.0 / len(member.bins))
        else:
            self._empty()  # clears rounding errors

    def fill(self, decoded: float, width: float) -> None:
        """Fill all bins again, from ``decoded`` tokens on."""
        self.seen = decoded
        self._empty()
        for member in self.members.values():
            member.bins = [int((end - decoded) / width) for end in member.ends if end > decoded] or [0]
            self._add(member, 1.0 / len(member.bins))

    def write(self, row: memoryview) -> None:
        """Write count, load and context of all bins into as many doubles."""
        _ROW.pack_into(row, 0, *self._counts, *self._load, *self._context)

    def _empty(self) -> None:
        self._counts, self._load, self._context = [0.0] * BINS, [0.0] * BINS, [0.0] * BINS

    def _add(self, member: _Member, share: float) -> None:
        """Add a trajectory to the bins it may end in, the same share to each."""
        counts, loads, contexts = self._counts, self._load, self._context
        load, context = share * member.load, share * member.context
        for at in member.bins:
            counts[at] += share
            loads[at] += load
            contexts[at] += context
