"""When the trajectories on each replica will finish, and how one more would change that.

Trajectories on a replica decode side by side, one token each per step. The time of a step follows from the number of
trajectories expected to be there after x more tokens (`bins.py`), their contexts and their prompts. Summed over x
(`bin_sums.py`), this gives the finish time of a trajectory of any length, and how much one more delays all others. Sums
are updated when enough trajectories have come or gone, or enough tokens were decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from struct import Struct

import numpy as np
import numpy.typing as npt

from steelyard.balance.rollouts import Replica
from steelyard.balance.route.rollout.bin_sums import TABLES, BinSums
from steelyard.balance.route.rollout.bins import BINS, ReplicaBins
from steelyard.balance.route.rollout.demand import LENGTHS, Array, Demand, DemandModel
from steelyard.balance.route.speed import BucketSpeed

_FRESH = 1 / 8  # share of a replica's trajectories that come or go before its sums are updated
_SHARE = np.array(1.0 / LENGTHS)  # of each length; an array, since numpy is slower with a plain number
_LIKELY = Struct(f"{LENGTHS}d")


@dataclass(slots=True)
class _Here:
    """A replica and the trajectories counted there. ``changes`` have come or gone since its sums were updated.

    At second ``since`` it had ``decoded`` tokens; from then on it decodes ``rate`` tokens per second.
    """

    number: int
    speed: BucketSpeed
    seats: int
    capacity: int
    bins: ReplicaBins
    steps: Array  # seconds of a step by the number of running requests
    seconds: list[float]  # the same
    since: float
    decoded: float = 0.0
    rate: float = 0.0
    changes: int = 0
    slot: int = 0  # its index in arrays

    def decoded_by(self, at: float) -> float:
        """Tokens that each running request has decoded by then."""
        return self.decoded + self.rate * (at - self.since)

    def passes(self, width: float) -> float:
        """When it will have decoded a bin's width more than when its bins were last filled."""
        if not self.rate:
            return inf
        return self.since + (width - (self.decoded - self.bins.seen)) / self.rate


class FinishPredictor:
    """How much a trajectory would raise the sum over trajectories of (finish time) ** 8, on each replica."""

    def __init__(self, demands: DemandModel) -> None:
        self._demands = demands
        self._here: list[_Here] = []
        self._by_number: dict[int, _Here] = {}
        self._where: dict[str, _Here] = {}  # by trajectory
        self._seconds: dict[tuple[BucketSpeed, int], list[float]] = {}  # of a step, by kind of replica and requests
        self._stale: set[int] = set()  # slots whose sums are outdated
        # Replicas whose load has changed, and tokens that tools returned per token then.
        self._loads: dict[int, tuple[Replica, float]] = {}
        self._last: tuple[Demand, int | None, Array] | None = None  # the last inputs and result of `_rises`
        self._at = 0.0
        self._width = 1.0  # of a bin, in tokens
        self._by_token = np.array(1.0)  # bins per token
        self._likely = np.ones(LENGTHS)  # lengths of the current demand
        self._likely_column = self._likely[:, None]
        self._into_likely = self._likely.data
        self._sums = BinSums(1.0)
        self._rooms: list[float] = []  # tokens of context that each replica has room for
        self._roomy = 0  # a slot that had room at the last call of `has_room`
        self._due: list[float] = []  # when the bins of each replica must be filled again
        self._next_due = inf  # the first of these
        self._resize(np.zeros((2, 0)), np.zeros((TABLES, BINS, 0)))

    def __reduce__(self) -> tuple[Callable[..., FinishPredictor], tuple[object, ...]]:
        """For pickling: the state from which arrays are rebuilt. Replicas with a changed load are pickled along."""
        self._grow()
        return _restored, (
            *(self._demands, self._here, self._stale, self._loads, self._at, self._width),
            *(self._rooms, self._due, self._kept, self._tables),
        )

    def up(self, replica: Replica, speed: BucketSpeed) -> None:
        """A replica is new. Arrays grow at the next question, since replicas come in numbers."""
        seconds = self._seconds.get((speed, replica.seats))
        if seconds is None:
            seconds = self._seconds[speed, replica.seats] = [speed.step(max(n, 1), 0) for n in range(replica.seats + 2)]
        here = _Here(
            replica.number, speed, replica.seats, replica.capacity, ReplicaBins(), np.array(seconds), seconds, self._at
        )
        here.slot = len(self._here)
        self._here.append(here)
        self._by_number[replica.number] = here
        self._rooms.append(inf)
        self._due.append(inf)

    def _grow(self) -> None:
        """Make room in arrays for replicas that are new."""
        new = len(self._here) - self._kept.shape[1]
        if new:
            empty = np.zeros((2, new)), np.zeros((TABLES, BINS, new))
            self._resize(np.hstack([self._kept, empty[0]]), np.concatenate([self._tables, empty[1]], 2))

    def gone(self, number: int) -> None:
        """Remove a replica. Its trajectories count nowhere from now on."""
        self._grow()
        slot = self._by_number[number].slot
        for name in self._here.pop(slot).bins.members:
            del self._where[name]
        del self._rooms[slot], self._due[slot]
        self._loads.pop(number, None)
        self._resize(np.delete(self._kept, slot, axis=1), np.delete(self._tables, slot, axis=2))

    def _resize(self, kept: Array, tables: Array) -> None:
        """Make arrays for as many replicas as there are."""
        count = len(self._here)
        self._roomy, self._next_due = 0, min(self._due, default=inf)
        self._by_number = {here.number: here for here in self._here}
        for slot, here in enumerate(self._here):
            here.slot = slot
        self._stale = set(range(count))
        self._kept, self._tables = kept, tables
        self._by_slot = [tables[:, :, slot] for slot in range(count)]
        self._marginal, self._total = kept
        self._marginals = np.tile(self._marginal, (2, LENGTHS, 1))  # as added to the first two of ``_each``
        speeds = list(dict.fromkeys(here.speed for here in self._here))
        self._kinds = [(speed.prefill, speed.read, speed.move, speed.reach) for speed in speeds]
        kinds = np.array([speeds.index(here.speed) for here in self._here], np.intp)
        self._kind: npt.NDArray[np.intp] = np.tile(kinds, (LENGTHS, 1))
        asked = np.zeros(3 * len(self._kinds))  # see `_ask`
        self._asked, self._into_asked = asked.reshape(3, -1), asked.data
        self._pack_asked = Struct(f"{len(asked)}d").pack_into
        self._each = np.zeros((3, LENGTHS, count))  # all by length, so that they have one shape
        self._slower, loads, self._wait = self._each
        self._slower_and_loads, self._load = self._each[:2], loads[0]
        self._tokens = np.zeros((LENGTHS, count))
        self._taken = np.zeros((TABLES, LENGTHS, count))
        harm, self._begin, self._pace = self._taken
        self._halves = [*_halves(harm), *_halves(self._begin)]
        self._harms, self._done, self._wait_once = harm[0], self._begin[0], self._wait[0]

    def set_load(self, replica: Replica) -> None:
        """A replica's load has changed. It is evaluated at the next query, since changes come in twos and threes."""
        self._loads[replica.number] = replica, self._demands.returned

    def _settle(self) -> None:
        at, width = self._at, self._width
        for number, (replica, returned) in self._loads.items():
            here, busy = self._by_number[number], replica.busy
            here.decoded += here.rate * (at - here.since)
            here.since = at
            if not busy:
                room, here.rate = inf, 0.0  # an idle replica accepts any context
            else:
                speed, seats, active = here.speed, replica.seats, replica.active
                room = replica.capacity - active if busy < seats else -inf
                running = busy if busy < seats else seats
                prompts = running * speed.prefill * returned
                here.rate = 1.0 / (here.seconds[running] + speed.read * active + prompts)
            self._rooms[here.slot] = room
            self._due[here.slot] = here.passes(width)
        self._loads.clear()
        self._next_due = min(self._due)

    def has_room(self, tokens: int) -> bool:
        """Whether any replica has room for such a context."""
        if self._loads:
            self._settle()
        rooms = self._rooms
        if not rooms:
            return False
        if rooms[self._roomy] < tokens:
            self._roomy = rooms.index(max(rooms))
        return rooms[self._roomy] >= tokens

    def count(self, name: str, number: int, demand: Demand) -> None:
        """Count a trajectory on this replica."""
        here = self._where[name] = self._by_number[number]
        decoded, usual = here.decoded_by(self._at), demand.usual_context
        load = here.speed.read * usual + here.speed.prefill * demand.returned
        farthest = demand.likely[-1] + decoded - here.bins.seen
        if farthest >= BINS * self._width:
            self._widen(farthest)
        here.bins.count(name, demand.likely, load, usual, decoded, self._width)
        self._changed(here)

    def discount(self, name: str) -> None:
        """Count a trajectory nowhere."""
        here = self._where.pop(name, None)
        if here is not None:
            here.bins.discount(name)
            self._changed(here)

    def _changed(self, here: _Here) -> None:
        here.changes += 1
        if here.changes >= _FRESH * len(here.bins.members):
            self._stale.add(here.slot)

    def best(self, demand: Demand, home: int | None, resident: bool, at: float) -> int:
        """The replica with the least rise, among ``home`` and those with room; the first of equals."""
        rises, context, rooms = self._cached_rises(demand, home if resident else None, at), demand.context, self._rooms
        if min(rooms) < context:
            rises, at_home = rises.copy(), -1 if home is None else self._by_number[home].slot
            for slot, room in enumerate(rooms):
                if room < context and slot != at_home:
                    rises[slot] = inf
        return self._here[rises.argmin()].number

    def rises(self, demand: Demand, resident: int | None, at: float) -> Array:
        """By replica: the trajectory's finish time there to the eighth power, plus the rise of that of others.

        A prompt delays everything on a replica, so the time to bring a context there counts in full. A cached part is
        moved or recomputed, whichever is faster, and is free on the replica where it is ``resident``.
        """
        return self._cached_rises(demand, resident, at).copy()

    def _cached_rises(self, demand: Demand, resident: int | None, at: float) -> Array:
        """The same, cached. Callers must not change the array."""
        if len(self._here) != len(self._marginal):
            self._grow()
        if self._loads:
            self._settle()
        if at > self._at:
            self._at = at
        if self._next_due <= self._at:
            for slot, due in enumerate(self._due):
                if due <= self._at:
                    self._fill(slot)
        if self._stale:
            for slot in self._stale:
                self._sum_up(slot)
            self._stale.clear()
            self._last = None
        last = self._last
        if last is None or last[0] is not demand or last[1] != resident:  # those of one prompt repeat the same query
            last = self._last = demand, resident, self._rises(demand, resident)
        return last[2]

    def _rises(self, demand: Demand, resident: int | None) -> Array:
        """All arrays have one shape, since broadcasting takes numpy four times as long."""
        self._ask(demand, resident)
        _LIKELY.pack_into(self._into_likely, 0, *demand.likely)
        self._tokens[:] = self._likely_column
        bins = np.multiply(self._likely, self._by_token).astype(np.intp)
        self._tables.take(bins, 1, self._taken, "clip")
        own, pace = self._begin, self._pace
        np.add(pace, self._slower, pace)
        np.add(own, np.multiply(pace, self._tokens, pace), own)
        np.add(own, self._wait, own)
        np.multiply(own, own, own)
        np.multiply(own, own, own)
        np.multiply(own, own, own)
        for first, second in self._halves:
            np.add(first, second, first)
        found: Array = np.multiply(self._load, self._harms)
        np.multiply(np.add(found, self._done, found), _SHARE, found)
        np.add(found, np.multiply(self._wait_once, self._total, self._wait_once), found)
        return found

    def _ask(self, demand: Demand, resident: int | None) -> None:
        """By replica: seconds per token of the trajectory, tools included, seconds of its prompt, and seconds that it
        adds to each step. Computed once per kind of replica."""
        cached, new, tools = demand.cached, demand.new, demand.tools
        usual, returned = demand.usual_context, demand.returned
        slower: list[float] = []
        waits: list[float] = []
        loads: list[float] = []
        for prefill, read, move, reach in self._kinds:
            moved, again = reach + move * cached, prefill * cached
            waits.append((moved if moved < again else again) + prefill * new)
            loads.append(added := read * usual + prefill * returned)
            slower.append(added + tools)
        self._pack_asked(self._into_asked, 0, *slower, *loads, *waits)
        self._asked.take(self._kind, 1, self._each, "clip")
        if resident is not None:
            here = self._by_number[resident]
            self._wait[:, here.slot] = here.speed.prefill * new
        np.add(self._slower_and_loads, self._marginals, self._slower_and_loads)

    def _fill(self, slot: int) -> None:
        here = self._here[slot]
        here.bins.fill(here.decoded_by(self._at), self._width)
        self._due[slot] = here.passes(self._width)
        self._next_due = min(self._due)
        self._stale.add(slot)

    def _widen(self, tokens: float) -> None:
        """Widen bins until they reach ``tokens``."""
        width = self._width
        while tokens >= BINS * width:
            width *= 2.0
        self._set_width(width)
        for slot in range(len(self._here)):
            self._fill(slot)

    def _set_width(self, width: float) -> None:
        self._width = width
        self._by_token = np.array(1.0 / width)
        self._sums.widen(width)

    def _sum_up(self, slot: int) -> None:
        here, sums = self._here[slot], self._sums
        here.bins.write(sums.row)
        self._total[slot] = sums.sum_up(here.steps, here.seats, here.capacity, self._demands.tools, self._by_slot[slot])
        self._marginal[slot] = self._marginals[:, :, slot] = sums.marginal(here.steps)
        here.changes = 0


def _restored(
    demands: DemandModel,
    here: list[_Here],
    stale: set[int],
    loads: dict[int, tuple[Replica, float]],
    at: float,
    width: float,
    rooms: list[float],
    due: list[float],
    kept: Array,
    tables: Array,
) -> FinishPredictor:
    """A predictor with the state of another."""
    made = FinishPredictor(demands)
    made._here, made._loads, made._at = here, loads, at
    made._where = {name: each for each in here for name in each.bins.members}
    made._rooms, made._due = rooms, due
    made._set_width(width)
    made._resize(kept, tables)
    made._stale = stale
    return made


def _halves(rows: Array) -> list[tuple[Array, Array]]:
    """Pairs of arrays: adding the second of each to the first leaves the sum of all rows in the first row.

    So the order of the sum is fixed, which BLAS and numpy do not guarantee.
    """
    flat, pairs = rows.ravel(), []
    half = len(flat) // 2
    for _ in range(LENGTHS.bit_length() - 1):
        pairs.append((flat[:half], flat[half : 2 * half]))
        half //= 2
    return pairs
