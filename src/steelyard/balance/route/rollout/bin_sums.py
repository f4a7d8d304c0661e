"""Sums over a replica's bins: how fast it decodes from bin to bin, and how much one more trajectory delays all others.

This runs for every other decision on short arrays, so the number of numpy calls and allocations determines its cost.
All arrays are reused, and scalars are kept as zero-dimensional arrays.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from steelyard.balance.route.rollout.bins import BINS, CONTEXT, COUNT, LOAD
from steelyard.balance.route.rollout.demand import Array

TABLES = 3
"""Rows by bin: the rise of the total if steps up to that bin take a second longer; then the seconds until a token in
the bin as a line: its start and its slope."""

_FLOORS = np.repeat([[0.0], [-np.inf], [1.0]], BINS, axis=1)  # of count, load and context
_SURELY = 1.0 + 1e-9  # more than any rounding error
_LATER = np.arange(1.0, BINS + 1.0)
_ONE, _HALF, _EIGHT = np.array(1.0), np.array(0.5), np.array(8.0)


class BinSums:
    """Computes the sums of bins of one width in tokens (`ReplicaBins.write`)."""

    def __init__(self, width: float) -> None:
        row = np.zeros(3 * BINS)
        self.row = row.data  # write it before `sum_up`
        self._row: Array = row.reshape(3, BINS)
        self._ends, self._from_last = self._row[COUNT], self._row[:, ::-1]
        self._there, self._sum = np.zeros((3, BINS)), np.zeros((3, BINS))
        self._backwards = self._sum[:, ::-1]
        self._present, self._load, self._context = (self._there[term] for term in (COUNT, LOAD, CONTEXT))
        self._turns, self._at_once, self._some = np.zeros(BINS), np.zeros(BINS), np.zeros(BINS)
        self._running: npt.NDArray[np.intp] = np.zeros(BINS, dtype=np.intp)
        self._both = np.zeros((2, BINS))
        self._weights, self._moments = self._both  # of ends, and these times their tokens
        self._crowded = False  # whether at some time not all can run at once
        self._tools = np.array(0.0)
        self._tables = np.zeros((TABLES, BINS))
        self.widen(width)

    def widen(self, width: float) -> None:
        """Set the width of bins."""
        self._width = np.array(width)
        self._middles: Array = (_LATER - 0.5) * width

    def sum_up(self, steps: Array, seats: int, capacity: int, tools: float, tables: Array) -> float:
        """Fill a replica's tables. Returns the rise of its total if everything there is delayed by a second.

        ``steps`` has the seconds of a step by the number of running requests, ``tools`` is seconds of tools per token.
        """
        self._count()
        self._share(seats, capacity)
        harm, begin, pace = self._tables
        some, width, middles = self._some, self._width, self._middles
        steps.take(self._running, None, pace, "clip")
        if self._crowded:
            np.multiply(pace, self._turns, pace)
        np.add(pace, self._load, pace)
        np.add.accumulate(pace, 0, None, begin)
        np.subtract(begin, np.multiply(pace, _LATER, some), begin)
        np.multiply(begin, width, begin)
        self._tools[()] = tools
        ends = np.add(pace, self._tools, harm)
        np.multiply(ends, middles, ends)
        np.add(ends, begin, ends)
        weights, moments = self._weights, self._moments
        np.multiply(self._ends, _EIGHT, weights)
        np.multiply(weights, ends, weights)
        np.multiply(ends, ends, some)
        np.multiply(weights, some, weights)
        np.multiply(weights, some, weights)
        np.multiply(weights, some, weights)
        np.multiply(weights, middles, moments)
        np.add.accumulate(self._both, 1, None, self._both)
        total = weights.item(BINS - 1)
        np.subtract(total, weights, harm)
        np.multiply(harm, middles, harm)
        np.add(harm, moments, harm)
        tables[:] = self._tables
        return total

    def _count(self) -> None:
        """By bin: count, load and context of trajectories that have not ended before."""
        there = self._there
        np.add.accumulate(self._from_last, 1, None, self._sum)
        np.multiply(self._row, _HALF, there)
        np.subtract(self._backwards, there, there)  # a trajectory that ends in a bin counts for half of it
        np.maximum(there, _FLOORS, out=there)

    def _share(self, seats: int, capacity: int) -> None:
        """By bin: how many can run at once, and the slowdown if they take turns."""
        count, context, running = self._present, self._context, self._some
        fits = context.item(context.argmax()) * _SURELY <= capacity
        self._crowded = not fits or count.item(count.argmax()) > seats
        if not self._crowded:
            self._running[:] = np.add(count, _HALF, running)
            return
        at_once, turns = self._at_once, self._turns
        np.multiply(count, capacity, at_once)
        np.divide(at_once, context, at_once)
        np.minimum(at_once, seats, out=at_once)
        np.maximum(at_once, _ONE, out=at_once)
        np.divide(count, at_once, turns)
        np.maximum(turns, _ONE, out=turns)
        np.minimum(count, at_once, out=running)
        self._running[:] = np.add(running, _HALF, running)

    def marginal(self, steps: Array) -> float:
        """Seconds that one more trajectory adds to each step now, on the replica of the last `sum_up`."""
        first = self._running.item(0)
        now = steps.item(first)
        takes_turns = self._crowded and self._turns.item(0) > 1.0
        return now / self._at_once.item(0) if takes_turns else steps.item(first + 1) - now
