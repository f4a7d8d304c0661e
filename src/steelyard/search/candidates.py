"""All fleets of a search, as columns: which kinds of engines, how many of each, and how much they can carry.

Half a million candidates are a dozen arrays. A candidate becomes a scenario only when it is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.records import Floats, Ints
from steelyard.scenario.search import ROLES, Architecture, SearchScenario, SearchSpec
from steelyard.search.demand import ServiceDemand
from steelyard.search.kinds import MOST_KINDS, Fate, Key, Kind, KindRecipe, Kinds, count_kinds, recipes
from steelyard.search.splits import splits

MOST_CANDIDATES = 20_000_000  # held as arrays: some 2 GB


@dataclass(frozen=True)
class Candidates:
    """Fleets of one architecture. ``first`` kinds serve, prefill, or are units; ``second`` kinds decode (-1: none)."""

    architecture: Architecture
    quantization: str | None
    router: str
    ones: tuple[Kind, ...]
    others: tuple[Kind, ...]
    first: Ints
    firsts: Ints  # how many
    second: Ints
    seconds: Ints
    bound: Floats  # the highest rate of the grid that the fleet may carry
    estimate: Floats
    by_level: Floats  # the same, a row for each level of the limits, from simulations of a few engines where there are
    at_best: Floats  # with margins, a row for each level
    gpus: Ints
    usd_per_hour: Floats
    watts: Floats

    def __len__(self) -> int:
        return len(self.first)

    def fleet(self, i: int, spec: Any) -> dict[str, Any]:
        """A candidate's fleet, in the form of a scenario."""
        one, count = self.ones[self.first[i]], int(self.firsts[i])
        pools, unit, units = one.times(count), one, count
        if self.second[i] >= 0:
            unit, units = self.others[self.second[i]], int(self.seconds[i])
            pools += unit.times(units)
        fleet: dict[str, Any] = {"pools": pools, "router": self.router}
        if any(pool["role"] == "prefill" for pool in pools):
            fleet["transfer"] = spec.transfer.model_dump(exclude_unset=True)
        if unit.micro_batches:
            fleet["afd"] = spec.units(units, unit.micro_batches)
        if spec.topology is not None:
            fleet["topology"] = spec.topology.model_dump(exclude_unset=True)
        return fleet

    def name(self, i: int) -> str:
        """A candidate in words."""
        told = f"{self.firsts[i]} x ({self.ones[self.first[i]].name})"
        if self.second[i] >= 0:
            told += f" to {self.seconds[i]} x ({self.others[self.second[i]].name})"
        if self.quantization is not None:
            told += f", {self.quantization}"
        return told


@dataclass(frozen=True)
class Space:
    """Everything that a search chooses from, and what cannot work."""

    groups: tuple[Candidates, ...]
    kinds: dict[Key, Kinds]
    considered: int  # candidates, with those that cannot work
    no_room: int  # candidates with a kind of engine that does not fit its GPUs
    refused: int  # candidates with a kind that cannot work for another reason


@dataclass(frozen=True)
class Ceiling:
    """Turns what a pool can serve into the highest rate of the grid at which its limits may be met."""

    demand: ServiceDemand | None
    rates: Floats
    needs: Floats  # requests per second to be served at each of these rates, at least

    def of(self, per_second: Floats) -> Floats:
        """The highest rate for each; infinite if nothing bounds it, 0 if not even the lowest may be carried."""
        if self.demand is None:
            return np.full(len(per_second), np.inf)
        place = np.searchsorted(self.needs, per_second, side="right") - 1
        found = self.rates[np.maximum(place, 0)]
        return np.where(place < 0, 0.0, np.where(place >= len(self.rates) - 1, np.inf, found))


Make = Callable[[Sequence[KindRecipe]], Sequence[Kind | tuple[Fate, int]]]
Try = Callable[[dict[Key, Kinds]], None]


def enumerate_space(
    scenario: SearchScenario, make: Make, try_alone: Try, ceilings: tuple[Ceiling, Ceiling], levels: int
) -> Space:
    """All candidates, with bounds and estimates. Raises UserError if there are none, or too many.

    ``make`` makes kinds of engines, in the order of their recipes. ``try_alone`` simulates a few engines of those that
    prefill or decode. ``ceilings`` are those of first tokens and of whole requests.
    """
    spec = scenario.search
    _check_size(scenario)
    kinds: dict[Key, Kinds] = {}
    groups: list[Candidates] = []
    counts = [0, 0, 0]
    for architecture, quantization in product(spec.chosen(), spec.quantization):
        for role in _roles(architecture):
            if (role, quantization) not in kinds:
                kinds[role, quantization] = _kinds(scenario, role, quantization, make)
    try_alone(kinds)
    for architecture in spec.chosen():
        for quantization in spec.quantization:
            own = [kinds[role, quantization] for role in _roles(architecture)]
            for router in spec.router:
                groups.append(_combined(scenario, architecture, quantization, router, own, ceilings, levels))
                _count(counts, spec, own)
    if not any(len(group) for group in groups):
        raise UserError(
            f"{scenario.source}: search: no fleet can work: of {counts[0]:,} candidates {counts[1]:,} do not fit the "
            f"memory of their GPUs and {counts[2]:,} have degrees or settings that do not go together, or need more "
            f"than {spec.gpus} GPUs"
        )
    return Space(tuple(groups), kinds, *counts)


def _roles(architecture: Architecture) -> list[str]:
    """The kinds of engines of an architecture: attention and FFN engines together are a unit."""
    return ["unit" if role == "attention" else role for role in ROLES[architecture] if role != "ffn"]


def _kinds(scenario: SearchScenario, role: str, quantization: str | None, make: Make) -> Kinds:
    found = Kinds(role)
    for made in make(list(recipes(scenario, role, quantization))):
        found.add(made)
    return found


def _check_size(scenario: SearchScenario) -> None:
    spec = scenario.search
    most = 0
    for architecture in spec.chosen():
        sizes = []
        for role in ROLES[architecture]:
            if role == "ffn":
                continue
            each = count_kinds(scenario, "unit" if role == "attention" else role)
            if each > MOST_KINDS:
                raise UserError(
                    f"{scenario.source}: search.{role}: {each:,} kinds of engines; at most {MOST_KINDS:,} can be "
                    "prepared: give fewer choices"
                )
            sizes.append(each)
        most += int(np.prod(sizes, dtype=object)) * len(spec.quantization) * len(spec.router)
    if most > MOST_CANDIDATES:
        raise UserError(
            f"{scenario.source}: search: {most:,} combinations of engines, before their numbers; at most "
            f"{MOST_CANDIDATES:,} can be searched: give fewer choices"
        )


def _combined(
    scenario: SearchScenario,
    architecture: Architecture,
    quantization: str | None,
    router: str,
    kinds: list[Kinds],
    ceilings: tuple[Ceiling, Ceiling],
    levels: int,
) -> Candidates:
    """Every number of engines, if a fleet's cost is what matters; else as many as there is room for."""
    spec = scenario.search
    every = spec.objective == "cost"
    ones, others = tuple(kinds[0].found), tuple(kinds[1].found) if len(kinds) > 1 else ()
    apart = len(kinds) > 1
    rows = [np.empty((0, 4), dtype=np.int64)]
    for i, one in enumerate(ones):
        most = spec.gpus // one.gpus
        if not apart:
            numbers = np.arange(1, most + 1) if every else np.arange(most, most + 1)
            numbers = numbers[numbers > 0]
            rows.append(np.stack([np.full_like(numbers, i), numbers, np.full_like(numbers, -1), 0 * numbers], axis=1))
            continue
        for j, other in enumerate(others):
            pairs = splits(spec, one.gpus, other.gpus)
            rows.append(np.insert(pairs, [0, 1], [i, j], axis=1))
    first, firsts, second, seconds = np.concatenate(rows).T

    def sides(what: Callable[[Kind, str], float]) -> list[Floats]:
        """What the engines of each side have together."""
        parts = ("prefill", "decode") if apart else ("serve",)
        found = []
        for part, own, place, number in zip(parts, (ones, others), (first, second), (firsts, seconds), strict=False):
            found.append(np.array([what(each, part) for each in own] or [0.0], dtype=float)[place] * number)
        return found

    bounds = sides(lambda each, part: each.ratings[part].bound)
    estimate: Floats = np.min(sides(lambda each, part: each.ratings[part].estimate), axis=0)
    by_level = [np.min(sides(partial(_likely, level)), axis=0) for level in range(levels)]
    at_best = [np.min(sides(partial(_at_best, level)), axis=0) for level in range(levels)]
    highest = [ceiling.of(bound) for ceiling, bound in zip(ceilings if apart else ceilings[1:], bounds, strict=True)]
    return Candidates(
        architecture,
        quantization,
        router,
        ones,
        others,
        *(first, firsts, second, seconds),
        bound=np.min(highest, axis=0),
        estimate=estimate,
        by_level=np.stack(by_level),
        at_best=np.stack(at_best),
        gpus=np.sum(sides(lambda each, _: each.gpus), axis=0).astype(np.int64),
        usd_per_hour=np.sum(sides(lambda each, _: each.usd_per_hour), axis=0),
        watts=np.sum(sides(lambda each, _: each.watts), axis=0),
    )


def _likely(level: int, kind: Kind, part: str) -> float:
    return kind.ratings[part].likely(level)


def _at_best(level: int, kind: Kind, part: str) -> float:
    return kind.ratings[part].at_best(level)


def _count(counts: list[int], spec: SearchSpec, kinds: list[Kinds]) -> None:
    """Add an architecture's candidates: all, those without room, and those that are refused for other reasons."""
    ones, others = kinds[0].sizes, kinds[1].sizes if len(kinds) > 1 else {("works", 0): 1}
    for ((fate, size), number), ((other_fate, other), times) in product(ones.items(), others.items()):
        if other:
            each = len(splits(spec, size, other))
        else:
            each = spec.gpus // size if spec.objective == "cost" else min(1, spec.gpus // size)
        fates = (fate, other_fate)
        counts[0] += each * number * times
        counts[1] += each * number * times * ("no room" in fates)
        counts[2] += each * number * times * ("no room" not in fates and "refused" in fates)
