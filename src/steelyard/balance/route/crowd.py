"""Who is on one replica, as a row of bins: how many are likely to have how many tokens left."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from steelyard.balance.route.prospect import LENGTHS, Array

BINS = 64
PEOPLE, LOAD, CONTEXT = range(3)  # of those in a bin: their number, seconds they add to each step, tokens of context

_LAST = np.array(BINS - 1.0)


class Crowd:
    """Trajectories on a replica, each with its equally likely ends, counted in tokens that were decoded there.

    As decoding goes on, ends that a trajectory has passed are no longer likely, and the others are the more so; one
    that has passed them all may end at any time. Bins have a width in tokens and begin at ``seen``, where decoding
    was when they were last filled.
    """

    __slots__ = ("_added", "_bins", "_ends", "_free", "_slots", "_terms", "_weights", "row", "seen")

    def __init__(self) -> None:
        self.row: Array = np.zeros((3, BINS))
        self.seen = 0.0
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._ends: Array = np.zeros((0, LENGTHS))
        self._bins: npt.NDArray[np.intp] = np.zeros((0, LENGTHS), dtype=np.intp)
        self._weights: Array = np.zeros((0, LENGTHS))
        self._terms: Array = np.zeros((0, 3, 1))
        self._added: Array = np.zeros((3, BINS))

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[str]:
        return iter(self._slots)

    @property
    def farthest(self) -> float:
        """The last of all likely ends, in tokens from ``seen`` on."""
        return float(self._ends.max()) - self.seen if self._slots else 0.0

    def count(self, name: str, tokens: Array, load: float, context: float, decoded: float, width: Array) -> None:
        """One more is there from now on, with so many tokens to go; it adds ``load`` seconds to each step."""
        if not self._free:
            self._grow()
        slot = self._slots[name] = self._free.pop()
        ends = np.add(tokens, decoded, self._ends[slot])
        mine = self._terms[slot]
        mine[PEOPLE], mine[LOAD], mine[CONTEXT] = 1.0, load, context
        bins = np.subtract(ends, self.seen)
        self._bins[slot] = np.minimum(np.divide(bins, width, bins), _LAST, out=bins)
        self._weights[slot] = 1.0 / LENGTHS
        np.add(self.row, self._spread(slot), self.row)

    def discount(self, name: str) -> None:
        """One less."""
        slot = self._slots.pop(name)
        if self._slots:
            np.subtract(self.row, self._spread(slot), self.row)
        else:
            self.row[:] = 0.0
        self._ends[slot] = 0.0
        self._terms[slot] = 0.0
        self._free.append(slot)

    def fill(self, decoded: float, width: float) -> None:
        """Fill all bins anew, as seen from so many tokens on."""
        self.seen = decoded
        ahead = self._ends - decoded
        likely = ahead > 0.0
        likely[~likely.any(axis=1), 0] = True
        self._weights = likely / likely.sum(axis=1, keepdims=True)
        self._bins = np.clip(ahead / width, 0, BINS - 1).astype(np.intp)
        bins = self._bins.ravel()
        for term in range(3):
            weights = self._weights * self._terms[:, term]
            self.row[term] = np.bincount(bins, weights.ravel(), BINS)

    def _spread(self, slot: int) -> Array:
        """What one counts by, over the bins it may end in."""
        np.multiply(self._terms[slot], np.bincount(self._bins[slot], self._weights[slot], BINS), out=self._added)
        return self._added

    def _grow(self) -> None:
        had = len(self._ends)
        more = max(16, had)
        self._ends = np.vstack([self._ends, np.zeros((more, LENGTHS))])
        self._bins = np.vstack([self._bins, np.zeros((more, LENGTHS), dtype=np.intp)])
        self._weights = np.vstack([self._weights, np.zeros((more, LENGTHS))])
        self._terms = np.vstack([self._terms, np.zeros((more, 3, 1))])
        self._free = list(range(had + more - 1, had - 1, -1))
