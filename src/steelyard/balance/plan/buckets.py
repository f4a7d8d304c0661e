"""The best rollout replicas for every number of GPUs at once, by dynamic programming over sorted trajectories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

import numpy as np

from steelyard.balance.plan.makespan import Classes, ReplicaModel, makespans
from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.world import Bucket, Plan, TrainOption, World
from steelyard.records import Floats, Ints

# With these, plans are within 2 % of an exhaustive search (tests/balance/test_plan.py).
_CUTS = 10  # lengths at which one bucket's trajectories may end and the next one's begin
_RANGES = 2  # ranges of lengths that a degree may serve
_EVERY = 16  # every number of replicas up to this is tried; larger ones grow by a factor
_FACTOR = 1.1

_Asked = tuple[int, tuple[tuple[int, ReplicaModel], ...], int, bool, bool]


@dataclass(frozen=True, slots=True)
class Rollout:
    """Buckets, and the seconds that a batch takes on them."""

    buckets: tuple[Bucket, ...]
    seconds: float


class Frontier(Protocol):
    """The best rollout for any number of GPUs."""

    evaluations: int  # makespans that were computed

    def seconds(self, gpus: int) -> float:
        """The makespan of a batch; infinite where nothing fits."""

    def rollout(self, gpus: int) -> Rollout:
        """The buckets."""


class ByLength:
    """Buckets of different degrees, each for one or two ranges of lengths: the longest may need their own replicas.

    Trajectories are sorted by latency and cut into ranges, which go to degrees in order of speed: ``_best[d][g, c]`` is
    the makespan of the shortest ones up to cut c on g GPUs with the first d degrees. The makespan of a range on some
    replicas is the fluid model's (`makespan.py`), computed for all ranges and numbers of replicas at once.
    """

    def __init__(self, world: World, measured: Measured) -> None:
        self._world = world
        self._classes = classes_of(world, measured)
        self._cuts = cuts_of(len(self._classes), world.by_length)
        usable = [tp for tp in by_speed(world) if tp <= world.gpus]
        self._degrees = [tp for tp in usable for _ in range(_RANGES if world.by_length else 1)]
        self.evaluations = 0
        tables = {tp: self._table(tp) for tp in usable}
        self._tables = [tables[tp] for tp in self._degrees]
        self._best: list[Floats] = [np.full((world.gpus + 1, len(self._cuts)), inf)]
        self._best[0][:, 0] = 0.0
        for index in range(len(self._degrees)):
            self._best.append(self._with(index, self._best[-1]) if world.by_length else self._alone(index))

    def seconds(self, gpus: int) -> float:
        return float(min(best[gpus, -1] for best in self._best))

    def rollout(self, gpus: int) -> Rollout:
        chosen: list[tuple[int, int, int, int]] = []  # degree, replicas, first and last cut
        index = min(range(len(self._best)), key=lambda i: float(self._best[i][gpus, -1]))
        left, upto = gpus, len(self._cuts) - 1
        while upto > 0:
            target = self._best[index][left, upto]
            if self._world.by_length and self._best[index - 1][left, upto] <= target:
                index -= 1
                continue
            replicas, since = self._step_back(index, left, upto)
            chosen.append((index - 1, replicas, since, upto))
            left, upto = left - replicas * self._degrees[index - 1], since
            index -= 1
        return self._buckets(self._fill(chosen[::-1], left))

    def _step_back(self, index: int, left: int, upto: int) -> tuple[int, int]:
        """The last degree's number of replicas, and the cut where its range begins. Ties go to the fewest replicas."""
        counts, table = self._tables[index - 1]
        before = self._best[index - 1] if self._world.by_length else self._best[0]
        options = [
            (max(float(before[left - r * self._degrees[index - 1], since]), float(table[row, since, upto])), r, since)
            for row, r in enumerate(counts.tolist())
            if r * self._degrees[index - 1] <= left
            for since in range(upto)
        ]
        _, replicas, since = min(options)
        return replicas, since

    def _fill(self, chosen: list[tuple[int, int, int, int]], left: int) -> list[tuple[int, int, int, int]]:
        """Give unused GPUs to the slowest bucket that can use them, one replica at a time."""
        chosen = list(chosen)
        while fitting := [place for place, each in enumerate(chosen) if self._degrees[each[0]] <= left]:
            slowest = max(fitting, key=lambda place: self._about(*chosen[place]))
            index, replicas, since, upto = chosen[slowest]
            left -= self._degrees[index]
            chosen[slowest] = index, replicas + 1, since, upto
        return chosen

    def _about(self, index: int, replicas: int, since: int, upto: int) -> float:
        """The makespan of a range by the table, interpolated between numbers of replicas."""
        counts, table = self._tables[index]
        seconds = table[:, since, upto]
        row = min(int(np.searchsorted(counts, replicas)), len(counts) - 1)
        if counts[row] <= replicas:
            return float(seconds[row])
        share = (replicas - int(counts[row - 1])) / int(counts[row] - counts[row - 1])
        return float(seconds[row - 1]) + share * float(seconds[row] - seconds[row - 1])

    def _buckets(self, chosen: list[tuple[int, int, int, int]]) -> Rollout:
        most = np.maximum.accumulate(self._classes.most)
        buckets = [Bucket(self._degrees[i], n, int(most[self._cuts[upto] - 1])) for i, n, _, upto in chosen]
        order = sorted(buckets, key=lambda bucket: (bucket.tp, bucket.upto))
        return Rollout(tuple(order), max(self._about(*each) for each in chosen))

    def _table(self, tp: int) -> tuple[Ints, Floats]:
        """(numbers of replicas, makespan by number, first and last cut)."""
        counts = replica_counts(self._world.gpus // tp)
        places = range(len(self._cuts))
        ranges = np.array([(since, upto) for upto in places for since in range(upto)])
        rows, pairs = np.arange(len(counts)).repeat(len(ranges)), np.tile(ranges, (len(counts), 1))
        found = self._makespans(tp, counts[rows], self._cuts[pairs[:, 0]], self._cuts[pairs[:, 1]])
        table = np.full((len(counts), len(self._cuts), len(self._cuts)), inf)
        table[rows, pairs[:, 0], pairs[:, 1]] = found
        return counts, np.minimum.accumulate(table, axis=0)

    def _makespans(self, tp: int, replicas: Ints, first: Ints, last: Ints) -> Floats:
        classes, model = self._classes, self._world.replicas[tp]
        self.evaluations += len(replicas)
        below = np.concatenate([[0.0], np.cumsum(classes.count)])
        load = self._world.batches_at_once * (below[last] - below[first]) / replicas
        seconds = makespans(model, classes, load, first, last, self._world.sticky) / self._world.batches_at_once
        largest = np.maximum.accumulate(classes.largest)[last - 1]  # of shorter ranges too, which are rarely larger
        return np.where(largest > model.capacity, inf, seconds)

    def _with(self, index: int, before: Floats) -> Floats:
        """The makespans if one more degree may be used."""
        tp = self._degrees[index]
        counts, table = self._tables[index]
        best = before.copy()
        for row, replicas in enumerate(counts.tolist()):
            gpus = replicas * tp
            rest = before[: len(before) - gpus]
            reached = np.maximum(rest[:, :, None], table[row][None, :, :]).min(axis=1)
            np.minimum(best[gpus:], reached, out=best[gpus:])
        return best

    def _alone(self, index: int) -> Floats:
        """The makespans if one degree serves all trajectories."""
        return self._with(index, self._best[0])


class Frontiers:
    """A cache of `ByLength` by trajectories and replicas: it does not depend on the training layout.

    Each planner has its own. It can be computed again, so it is pickled empty.
    """

    def __init__(self) -> None:
        self._known: dict[Measured, dict[_Asked, ByLength]] = {}
        self._plans: dict[Measured, dict[object, list[Plan]]] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"_known": {}, "_plans": {}}

    def keep(self, some: Sequence[Measured]) -> None:
        """Drop everything but these trajectories."""
        self._known = {measured: self._known.get(measured, {}) for measured in some}
        self._plans = {measured: self._plans.get(measured, {}) for measured in some}

    def plans(self, measured: Measured, key: object, search: Callable[[Measured], list[Plan]]) -> list[Plan]:
        """The cached result of a search for these trajectories: a planner that is restarted repeats it."""
        known = self._plans.setdefault(measured, {})
        if key not in known:
            known[key] = search(measured)
        return known[key]

    def of(self, world: World, measured: Measured) -> ByLength:
        """The frontier of a world, for any training layout."""
        asked = world.gpus, tuple(world.replicas.items()), world.batches_at_once, world.by_length, world.sticky
        known = self._known.setdefault(measured, {})
        if asked not in known:
            known[asked] = ByLength(replace(world, train=_untimed), measured)
        return known[asked]


def _untimed(option: TrainOption, lengths: Ints) -> float:
    raise AssertionError("a frontier does not depend on training")


def classes_of(world: World, measured: Measured) -> Classes:
    """Trajectories by latency, with the decode time of the middle degree."""
    degrees = sorted(world.replicas)
    table = world.replicas[degrees[len(degrees) // 2]].speed.decode
    return Classes.of(measured, table[len(table) // 2][1])


def by_speed(world: World) -> list[int]:
    """Degrees, slowest first: longer trajectories go to faster replicas."""
    return sorted(world.replicas, key=lambda tp: (-world.replicas[tp].speed.decode[0][1], tp))


def replica_counts(most: int) -> Ints:
    """All small numbers of replicas, a geometric grid of the large ones, and the largest."""
    counts = list(range(1, min(most, _EVERY) + 1))
    while counts[-1] < most:
        counts.append(min(most, max(counts[-1] + 1, int(counts[-1] * _FACTOR))))
    return np.array(counts, dtype=np.int64)


def cuts_of(classes: int, by_length: bool) -> Ints:
    """Classes at which a range may begin or end; only the first and the last if there is one range."""
    parts = min(classes, _CUTS) if by_length else 1
    return np.unique(np.rint(np.arange(parts + 1) * classes / parts).astype(np.int64))
