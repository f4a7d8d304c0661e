"""What one replica's bins come to when they are summed up: how fast it decodes, and what one more would do to all.

This runs for every other decision and each array is short, so what counts is the number of numpy's calls and of arrays
made: all are kept from one time to the next, and so are numbers, as arrays without a dimension.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from steelyard.balance.route.crowd import BINS, CONTEXT, LOAD, PEOPLE
from steelyard.balance.route.prospect import Array

TABLES = 3  # by bin: harm to all there by a second more to each step for so many tokens; seconds until a token there,
# where a line through the bin begins, and how much it rises from token to token

_FLOORS = np.repeat([[0.0], [-np.inf], [1.0]], BINS, axis=1)  # of people, load and context
_SURELY = 1.0 + 1e-9  # whatever rounding does
_LATER = np.arange(1.0, BINS + 1.0)
_ONE, _HALF, _EIGHT = np.array(1.0), np.array(0.5), np.array(8.0)


class Sums:
    """Sums up a row of bins of a width in tokens (`Crowd.write`)."""

    def __init__(self, width: float) -> None:
        row = np.zeros(3 * BINS)
        self.row = row.data  # to be written before it is summed up
        self._row: Array = row.reshape(3, BINS)
        self._ends, self._from_last = self._row[PEOPLE], self._row[:, ::-1]
        self._there, self._sum = np.empty((3, BINS)), np.empty((3, BINS))
        self._backwards = self._sum[:, ::-1]
        self._people, self._load, self._context = (self._there[term] for term in (PEOPLE, LOAD, CONTEXT))
        self._turns, self._at_once, self._some = np.empty(BINS), np.empty(BINS), np.empty(BINS)
        self._running: npt.NDArray[np.intp] = np.empty(BINS, dtype=np.intp)
        self._both = np.empty((2, BINS))
        self._weights, self._moments = self._both  # of ends, and times the tokens until then
        self._crowded = False  # not all can always run at once
        self._tools = np.array(0.0)
        self._tables = np.empty((TABLES, BINS))
        self.widen(width)

    def widen(self, width: float) -> None:
        """Bins are so wide from now on."""
        self._width = np.array(width)
        self._middles: Array = (_LATER - 0.5) * width

    def sum_up(self, steps: Array, seats: int, capacity: int, tools: float, tables: Array) -> float:
        """Fill a replica's tables by who is there; returns what its ends weigh in all.

        ``steps`` has the seconds of a step by how many run, ``tools`` is seconds of tools by token.
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
        """By bin: who is still there."""
        there = self._there
        np.add.accumulate(self._from_last, 1, None, self._sum)
        np.multiply(self._row, _HALF, there)
        np.subtract(self._backwards, there, there)  # who ends in a bin is there for half of it
        np.maximum(there, _FLOORS, out=there)

    def _share(self, seats: int, capacity: int) -> None:
        """By bin: how many can run at once, and the turns they take where not all can."""
        people, context, running = self._people, self._context, self._some
        fits = context.item(context.argmax()) * _SURELY <= capacity
        self._crowded = not fits or people.item(people.argmax()) > seats
        if not self._crowded:
            self._running[:] = np.add(people, _HALF, running)
            return
        at_once, turns = self._at_once, self._turns
        np.multiply(people, capacity, at_once)
        np.divide(at_once, context, at_once)
        np.minimum(at_once, seats, out=at_once)
        np.maximum(at_once, _ONE, out=at_once)
        np.divide(people, at_once, turns)
        np.maximum(turns, _ONE, out=turns)
        np.minimum(people, at_once, out=running)
        self._running[:] = np.add(running, _HALF, running)

    def marginal(self, steps: Array) -> float:
        """Seconds that one more adds to each step now, in the replica that was last summed up."""
        first = self._running.item(0)
        now = steps.item(first)
        takes_turns = self._crowded and self._turns.item(0) > 1.0
        return now / self._at_once.item(0) if takes_turns else steps.item(first + 1) - now
