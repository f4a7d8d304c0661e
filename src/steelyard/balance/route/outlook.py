"""When everybody on each replica will be done, and what one more trajectory would do to that.

Trajectories on a replica decode side by side, a token each to a step. So all that counts is how many are likely to be
there still after x more tokens (`crowd.py`): a step then takes what so many take, plus what each one's context and
prompts add. Summed up over x, that says when a trajectory of any length would be done there, and how much later one
more lets all others be done. Sums are made again when enough has changed, or enough was decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from steelyard.balance.rollouts import Replica
from steelyard.balance.route.crowd import BINS, CONTEXT, LOAD, PEOPLE, Crowd
from steelyard.balance.route.prospect import LENGTHS, Array, Habits, Prospect
from steelyard.balance.route.speed import BucketSpeed

_FRESH = 1 / 32  # of those on a replica: its sums are made again when so many have changed
_PREFILL, _READ, _MOVE, _REACH, _SEATS, _CAPACITY, _ROOM, _RATE, _DECODED, _SEEN, _MARGINAL, _TOTAL = range(12)
_COLUMNS = 12
_MIDDLES = np.arange(BINS) + 0.5
_EVENLY = np.full(LENGTHS, 1.0 / LENGTHS)


@dataclass(slots=True)
class _Here:
    """A replica, who counts there, and how many of them have come or gone since it was summed up."""

    number: int
    speed: BucketSpeed
    crowd: Crowd
    changes: int = 0


class Outlook:
    """How much a trajectory would raise the sum over trajectories of (when it is done) ** 8, on each replica."""

    def __init__(self, habits: Habits) -> None:
        self._habits = habits
        self._here: list[_Here] = []
        self._slots: dict[int, int] = {}  # by replica
        self._where: dict[str, int] = {}  # replicas by trajectory
        self._stale: set[int] = set()  # slots that are to be summed up again
        self._at = 0.0
        self._width = 1.0  # tokens of a bin
        self._columns: Array = np.zeros((_COLUMNS, 0))
        self._steps: Array = np.zeros((0, 1))  # seconds of a step by how many run
        self._begin: Array = np.zeros((0, BINS))  # seconds until a bin's tokens begin
        self._pace: Array = np.zeros((0, BINS))  # seconds a token in each bin
        self._harm: Array = np.zeros((0, BINS))  # to all there, by a second more to each step for that many tokens

    def up(self, replica: Replica, speed: BucketSpeed) -> None:
        """A replica is new."""
        self._here.append(_Here(replica.number, speed, Crowd()))
        column = np.zeros((_COLUMNS, 1))
        column[: _REACH + 1, 0] = speed.prefill, speed.read, speed.move, speed.reach
        column[_SEATS], column[_CAPACITY] = replica.seats, replica.capacity
        self._columns = np.hstack([self._columns, column])
        most = max(self._steps.shape[1] - 2, replica.seats)
        self._steps = np.array([[each.speed.step(max(n, 1), 0) for n in range(most + 2)] for each in self._here])
        self._resize(lambda rows: np.vstack([rows, np.zeros((1, BINS))]))

    def gone(self, number: int) -> None:
        """A replica is no more; nothing of what counted there counts anywhere."""
        slot = self._slots[number]
        for name in self._here.pop(slot).crowd:
            del self._where[name]
        self._columns = np.delete(self._columns, slot, axis=1)
        self._steps = np.delete(self._steps, slot, axis=0)
        self._resize(lambda rows: np.delete(rows, slot, axis=0))

    def _resize(self, change: Callable[[Array], Array]) -> None:
        self._begin, self._pace, self._harm = change(self._begin), change(self._pace), change(self._harm)
        self._slots = {here.number: slot for slot, here in enumerate(self._here)}
        self._stale = set(range(len(self._here)))

    def set_load(self, replica: Replica) -> None:
        """What a replica can take now, and how fast it decodes with those that run."""
        slot, busy = self._slots[replica.number], replica.busy
        if not busy:
            room, rate = inf, 0.0  # whatever its size, it has to run somewhere
        else:
            speed = self._here[slot].speed
            room = replica.capacity - replica.active if replica.free_seats > 0 else -inf
            running = min(busy, replica.seats)
            prompts = running * speed.prefill * self._habits.returned
            rate = 1.0 / (self._steps.item(slot, running) + speed.read * replica.active + prompts)
        self._columns[_ROOM, slot], self._columns[_RATE, slot] = room, rate

    def has_room(self, tokens: int) -> bool:
        """Whether any replica can take such a context."""
        return bool(self._columns[_ROOM].max(initial=-inf) >= tokens)

    def count(self, name: str, number: int, who: Prospect) -> None:
        """From now on a trajectory counts on this replica."""
        slot = self._slots[number]
        here = self._here[slot]
        self._where[name] = number
        decoded = self._columns.item(_DECODED, slot)
        load = here.speed.read * who.usual_context + here.speed.prefill * who.returned
        here.crowd.count(name, who, load, decoded, self._width)
        self._changed(slot)
        if float(who.tokens[-1]) + decoded - here.crowd.seen >= BINS * self._width:
            self._widen()

    def discount(self, name: str) -> None:
        """A trajectory counts nowhere for now."""
        number = self._where.pop(name, None)
        if number is not None:
            slot = self._slots[number]
            self._here[slot].crowd.discount(name)
            self._changed(slot)

    def _changed(self, slot: int) -> None:
        here = self._here[slot]
        here.changes += 1
        if here.changes >= _FRESH * len(here.crowd):
            self._stale.add(slot)

    def best(self, who: Prospect, home: int | None, resident: bool, at: float) -> int:
        """The replica with the least rise among ``home`` and those with room; the first of equals."""
        rises = self.rises(who, home if resident else None, at)
        barred = self._columns[_ROOM] < who.context
        if home is not None:
            barred[self._slots[home]] = False
        rises[barred] = inf
        return self._here[int(rises.argmin())].number

    def rises(self, who: Prospect, resident: int | None, at: float) -> Array:
        """By replica: when it would be done there itself, to the eighth, and by how much it would raise that of others.

        A prompt holds everybody up, so what a context takes to be there counts in full: a cached part is brought over
        or computed again, whichever is faster, and costs nothing where it is ``resident``.
        """
        self._go_on(at)
        self._sum_up()
        columns, tokens, width = self._columns, who.tokens, self._width
        prefill = columns[_PREFILL]
        wait = np.minimum(columns[_REACH] + columns[_MOVE] * who.cached, prefill * who.cached)
        if resident is not None:
            wait[self._slots[resident]] = 0.0
        wait += prefill * who.new
        load = columns[_READ] * who.usual_context + prefill * who.returned
        load += columns[_MARGINAL]
        bins = np.minimum((tokens / width).astype(np.intp), BINS - 1)
        own = self._pace.take(bins, axis=1) * (tokens - bins * width)
        own += self._begin.take(bins, axis=1)
        own += load[:, None] * tokens
        own += who.tools * tokens
        own += wait[:, None]
        own *= own
        own *= own
        own *= own
        rises: Array = own @ _EVENLY
        rises += load * (self._harm.take(bins, axis=1) @ _EVENLY)
        rises += wait * columns[_TOTAL]
        return rises

    def _go_on(self, at: float) -> None:
        """Time has gone by: tokens were decoded."""
        elapsed, self._at = at - self._at, max(at, self._at)
        if elapsed <= 0.0:
            return
        columns = self._columns
        columns[_DECODED] += elapsed * columns[_RATE]
        for slot in np.nonzero(columns[_DECODED] - columns[_SEEN] >= self._width)[0].tolist():
            self._fill(slot)

    def _fill(self, slot: int) -> None:
        decoded = self._columns.item(_DECODED, slot)
        self._here[slot].crowd.fill(decoded, self._width)
        self._columns[_SEEN, slot] = decoded
        self._stale.add(slot)

    def _widen(self) -> None:
        """Bins become wider until everybody's last likely end is in one of them."""
        while max(here.crowd.farthest for here in self._here) >= BINS * self._width:
            self._width *= 2.0
        for slot in range(len(self._here)):
            self._fill(slot)

    def _sum_up(self) -> None:
        if not self._stale:
            return
        stale = sorted(self._stale)
        self._stale.clear()
        slots: npt.NDArray[np.intp] = np.array(stale)
        rows = np.array([self._here[slot].crowd.row for slot in stale])
        there = rows[:, :, ::-1].cumsum(axis=2)[:, :, ::-1] - rows / 2  # who ends in a bin is there for half of it
        people = np.maximum(there[:, PEOPLE], 0.0)
        context = np.maximum(there[:, CONTEXT], 1.0)
        fit = self._columns[_CAPACITY, slots, None] * people / context
        at_once = np.maximum(np.minimum(fit, self._columns[_SEATS, slots, None]), 1.0)
        turns = np.maximum(people / at_once, 1.0)  # they take, where not all can run at once
        running = (np.minimum(people, at_once) + 0.5).astype(np.intp)
        pace = self._steps[slots[:, None], running] * turns + there[:, LOAD]
        begin = (pace.cumsum(axis=1) - pace) * self._width
        middles = _MIDDLES * self._width
        ends = begin + pace * (self._width / 2) + self._habits.tools * middles
        square = ends * ends
        weights = 8.0 * rows[:, PEOPLE] * ends * square * square * square
        total = weights.sum(axis=1)
        self._begin[slots], self._pace[slots] = begin, pace
        self._harm[slots] = (weights * middles).cumsum(axis=1) + middles * (total[:, None] - weights.cumsum(axis=1))
        first, once = running[:, 0], at_once[:, 0]
        slope = self._steps[slots, first + 1] - self._steps[slots, first]
        self._columns[_MARGINAL, slots] = np.where(turns[:, 0] > 1.0, self._steps[slots, first] / once, slope)
        self._columns[_TOTAL, slots] = total
        for slot in stale:
            self._here[slot].changes = 0
