"""The best candidates of an architecture, by successive simulations from short to long.

Candidates come in the order of their estimates. One is simulated only while it may still win: its bound, which is
sound, and its estimate with a margin must be above the best so far. Then it must carry the next rate above the best in
a short simulation, and after that in a whole one. Only a candidate that does is taken further up. All candidates get
the same requests.

The first candidates climb alone. The others advance in rounds of a fixed size, so the number of processes changes
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from steelyard.records import Floats
from steelyard.scenario import SloSpec
from steelyard.search.candidates import Candidates
from steelyard.search.outcome import LoadOutcome
from steelyard.search.rates import RateGrid

_AT_ONCE = 8  # candidates that advance together
_BLOCK = 16  # places of the grid, a power of two: rates that are 37 % apart
KEPT = 2  # best candidates that must be right: the answer and the next best


@dataclass(frozen=True)
class CandidateKey:
    """A candidate: its group of candidates, and its place there."""

    group: int
    row: int


@dataclass(frozen=True)
class RateTrial:
    """One simulation: a candidate at a rate of the grid, short or whole."""

    entry: CandidateKey
    place: int
    short: bool


@dataclass(frozen=True)
class Standing:
    """How far a candidate got at a level: the place of the highest rate it carries, and what happened there."""

    entry: CandidateKey
    place: int
    score: float
    outcome: LoadOutcome


@dataclass
class Field:
    """The candidates of an architecture, and what one request per second of each is worth."""

    groups: Sequence[Candidates]
    numbers: Sequence[int]  # of the groups, in the space
    weight: Callable[[Candidates], Floats]

    def rows(self) -> Iterator[tuple[CandidateKey, list[float], list[float], float, float]]:
        """(candidate, estimates by level, the same with margins, bound, weight), the highest estimates of any level
        first, relative to the highest of that level."""
        parts = [(number, group, self.weight(group)) for number, group in zip(self.numbers, self.groups, strict=True)]
        by_level = np.concatenate([group.by_level * weight for _, group, weight in parts], axis=1)
        highest = np.maximum(by_level.max(axis=1, keepdims=True), 1e-12)
        estimate = (by_level / highest).max(axis=0)
        where = np.concatenate([np.full(len(group), i) for i, (_, group, _) in enumerate(parts)])
        place = np.concatenate([np.arange(len(group)) for _, group, _ in parts])
        for at in np.argsort(-estimate, kind="stable").tolist():
            number, group, weight = parts[where[at]]
            row = int(place[at])
            yield (
                CandidateKey(number, row),
                group.by_level[:, row].tolist(),
                group.at_best[:, row].tolist(),
                float(group.bound[row]),
                float(weight[row]),
            )


@dataclass
class Tally:
    """What became of the candidates."""

    by_bound: int = 0  # cannot win
    by_estimate: int = 0
    by_short: int = 0  # by a short simulation
    simulated: int = 0
    whole: int = 0  # by a whole simulation


Climb = Generator[RateTrial, LoadOutcome, dict[str, tuple[int, LoadOutcome]]]
Climbing = tuple[CandidateKey, float, Climb, RateTrial]  # a candidate, its weight, and the trial that it waits for


@dataclass
class Contest:
    """Finds the best of a field at every level of the limits."""

    grid: RateGrid
    levels: dict[str, SloSpec]
    good: float | None
    exhaustive: bool = False
    tally: Tally = field(default_factory=Tally)
    best: dict[str, list[Standing]] = field(default_factory=dict)
    everyone: dict[str, dict[CandidateKey, float]] = field(default_factory=dict)  # of an exhaustive contest

    def run(self, entrants: Field, simulate: Callable[[Sequence[RateTrial]], Sequence[LoadOutcome]]) -> None:
        """Let all candidates compete. ``simulate`` answers trials, in their order."""
        self.best = {level: [] for level in self.levels}
        self.everyone = {level: {} for level in self.levels}
        starting = (each for row in entrants.rows() if (each := self._start(*row)) is not None)
        self._together(islice(starting, KEPT), simulate)  # so that all others have something to beat
        self._together(starting, simulate)

    def _together(
        self, starting: Iterator[Climbing], simulate: Callable[[Sequence[RateTrial]], Sequence[LoadOutcome]]
    ) -> None:
        """Let candidates climb, some at once. One is started when there is room for it."""
        climbing: list[Climbing] = []
        while True:
            climbing += islice(starting, _AT_ONCE - len(climbing))
            if not climbing:
                return
            outcomes = simulate([trial for _, _, _, trial in climbing])
            going: list[Climbing] = []
            for (entry, weight, climb, _), outcome in zip(climbing, outcomes, strict=True):
                try:
                    going.append((entry, weight, climb, climb.send(outcome)))
                except StopIteration as end:
                    self._finish(entry, weight, end.value)
            climbing = going

    def _start(
        self, entry: CandidateKey, estimates: list[float], at_best: list[float], bound: float, weight: float
    ) -> Climbing | None:
        """The first trial of a candidate; None if it cannot win, or should not be able to."""
        wanted: dict[str, int | None] = {}
        highest = self.grid.at_most(min(bound, float(self.grid.rates[-1])))
        cut = {"bound": False, "estimate": False}
        for level, hoped in zip(self.levels, at_best, strict=True):
            floor = self._to_beat(level)
            place = None if floor is None or self.exhaustive else self.grid.above(floor / weight)
            if highest < (0 if place is None else place):
                cut["bound"] = True
            elif place is not None and hoped < float(self.grid.rates[min(place, highest)]):
                cut["estimate"] = True
            else:
                wanted[level] = place
        if not wanted or (max(estimates) <= 0 and not self.exhaustive):
            self.tally.by_bound += cut["bound"] and not cut["estimate"]
            self.tally.by_estimate += cut["estimate"] or not cut["bound"]
            return None
        guesses = {level: max(0, self.grid.at_most(each)) for level, each in zip(self.levels, estimates, strict=True)}
        climb = self._climb(entry, guesses, highest, wanted)
        self.tally.simulated += 1
        return entry, weight, climb, next(climb)

    def _to_beat(self, level: str) -> float | None:
        found = self.best[level]
        return found[KEPT - 1].score if len(found) >= KEPT else None

    def _finish(self, entry: CandidateKey, weight: float, found: dict[str, tuple[int, LoadOutcome]]) -> None:
        for level, (place, outcome) in found.items():
            score = float(self.grid.rates[place]) * weight
            standing = Standing(entry, place, score, outcome)
            ranked = sorted(
                [*self.best[level], standing], key=lambda each: (-each.score, each.entry.group, each.entry.row)
            )
            self.best[level] = list(_different(ranked))[:KEPT]
            self.everyone[level][entry] = score

    def _climb(
        self, entry: CandidateKey, guesses: dict[str, int], highest: int, wanted: dict[str, int | None]
    ) -> Climb:
        """Trials of one candidate. ``wanted`` are the places it must carry, by level; None: whatever it can."""
        whole: dict[int, LoadOutcome] = {}
        found: dict[str, tuple[int, LoadOutcome]] = {}

        def carries(place: int, level: str) -> Generator[RateTrial, LoadOutcome, bool]:
            if place not in whole:
                self.tally.whole += 1
                whole[place] = yield RateTrial(entry, place, False)
            return whole[place].meets(self.levels[level], self.good)

        short: dict[int, LoadOutcome] = {}
        passed = False
        for level, place in wanted.items():
            if place is not None:
                if place not in whole and place not in short:
                    short[place] = yield RateTrial(entry, place, True)
                if place in short and not short[place].meets(self.levels[level], self.good):
                    continue
                passed = True
                if not (yield from carries(place, level)):
                    continue
            passed = True
            start = min(max(guesses[level], place or 0), highest)
            low = yield from _highest(carries, start, highest, level)
            if low is not None:
                found[level] = low, whole[low]
        self.tally.by_short += not passed
        return found


def _highest(
    carries: Callable[[int, str], Generator[RateTrial, LoadOutcome, bool]], start: int, highest: int, level: str
) -> Generator[RateTrial, LoadOutcome, int | None]:
    """The highest place that is carried; None if none is.

    Places are tried in blocks, and then within one in a fixed order. So the answer hardly depends on where the search
    starts, also where a place is carried and one below is not, as happens by chance.
    """
    block = start // _BLOCK
    while block >= 0 and not (yield from carries(block * _BLOCK, level)):
        block -= 1
    if block < 0:
        return None
    if block == start // _BLOCK:
        while (block + 1) * _BLOCK <= highest and (yield from carries((block + 1) * _BLOCK, level)):
            block += 1
    low, step = block * _BLOCK, _BLOCK // 2
    while step:
        if low + step <= highest and (yield from carries(low + step, level)):
            low += step
        step //= 2
    return low


def _different(ranked: Iterable[Standing]) -> Iterator[Standing]:
    """Without those that do exactly as one before: a setting that never matters makes no other fleet."""
    last: Standing | None = None
    for each in ranked:
        if last is None or (each.score, each.outcome) != (last.score, last.outcome):
            yield each
            last = each
