"""All fleets of a search, as columns: which kinds of engines, how many of each, and how much they can carry.

Half a million candidates are a dozen arrays. A candidate becomes a scenario only when it is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from steelyard.errors import UserError
from steelyard.records import Floats, Ints
from steelyard.scenario.search import ROLES, Architecture, SearchScenario
from steelyard.search.bounds import EngineBound
from steelyard.search.demand import Demand
from steelyard.search.estimates import Asked, answers_per_second, prompts_per_second
from steelyard.search.kinds import MOST_KINDS, Kind, Kinds, count_kinds, kinds_of

MOST_CANDIDATES = 20_000_000  # held as arrays: some 2 GB

Key = tuple[str, str | None]  # a role and a quantization


@dataclass(frozen=True)
class Rated:
    """A kind of engine with what one of it can carry, in requests per second."""

    kind: Kind
    bound: float  # no simulation is above it
    estimate: float


@dataclass(frozen=True)
class Candidates:
    """Fleets of one architecture. ``first`` kinds serve, prefill, or are units; ``second`` kinds decode (-1: none)."""

    architecture: Architecture
    quantization: str | None
    router: str
    ones: tuple[Rated, ...]
    others: tuple[Rated, ...]
    first: Ints
    firsts: Ints  # how many
    second: Ints
    seconds: Ints
    bound: Floats  # the highest rate of the grid that the fleet may carry
    estimate: Floats
    gpus: Ints
    usd_per_hour: Floats
    watts: Floats

    def __len__(self) -> int:
        return len(self.first)

    def fleet(self, i: int, spec: Any) -> dict[str, Any]:
        """A candidate's fleet, in the form of a scenario."""
        one, count = self.ones[self.first[i]].kind, int(self.firsts[i])
        pools, unit, units = one.times(count), one, count
        if self.second[i] >= 0:
            unit, units = self.others[self.second[i]].kind, int(self.seconds[i])
            pools += unit.times(units)
        fleet: dict[str, Any] = {"pools": pools, "router": self.router}
        if any(pool["role"] == "prefill" for pool in pools):
            fleet["transfer"] = spec.transfer.model_dump(exclude_unset=True)
        if unit.micro_batches:
            fleet["afd"] = {"units": units, "micro_batches": unit.micro_batches}
        if spec.topology is not None:
            fleet["topology"] = spec.topology.model_dump(exclude_unset=True)
        return fleet

    def name(self, i: int) -> str:
        """A candidate in words."""
        told = f"{self.firsts[i]} x ({self.ones[self.first[i]].kind.name})"
        if self.second[i] >= 0:
            told += f" to {self.seconds[i]} x ({self.others[self.second[i]].kind.name})"
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

    demand: Demand | None
    rates: Floats
    needs: Floats  # requests per second to be served at each of these rates, at least

    def of(self, per_second: Floats) -> Floats:
        """The highest rate for each; infinite if nothing bounds it, 0 if not even the lowest may be carried."""
        if self.demand is None:
            return np.full(len(per_second), np.inf)
        place = np.searchsorted(self.needs, per_second, side="right") - 1
        found = self.rates[np.maximum(place, 0)]
        return np.where(place < 0, 0.0, np.where(place >= len(self.rates) - 1, np.inf, found))


def enumerate_space(scenario: SearchScenario, asked: Asked, tpot: float, first: Ceiling, whole: Ceiling) -> Space:
    """All candidates, with bounds and estimates. Raises UserError if there are none, or too many."""
    spec = scenario.search
    _check_size(scenario)
    rated: dict[Key, tuple[Rated, ...]] = {}
    kinds: dict[Key, Kinds] = {}
    groups: list[Candidates] = []
    counts = [0, 0, 0]
    for architecture in spec.chosen():
        roles = [role for role in ROLES[architecture] if role not in ("attention", "ffn")]
        if "attention" in ROLES[architecture]:
            roles.append("unit")
        for quantization in spec.quantization:
            for role in roles:
                whole_unit = role == "unit" and architecture == "afd"
                key = (f"{role}{' whole' if whole_unit else ''}", quantization)
                if key not in rated:
                    kinds[key] = kinds.get((role, quantization)) or kinds_of(scenario, role, quantization)
                    rated[key] = tuple(
                        _rated(kind, role, whole_unit, asked, tpot, first.demand, whole.demand)
                        for kind in kinds[key].found
                    )
            keys = [(f"{role}{' whole' if architecture == 'afd' else ''}", quantization) for role in roles]
            for router in spec.router:
                both = [rated[key] for key in keys]
                groups.append(_combined(scenario, architecture, quantization, router, both, (first, whole)))
                _count(counts, spec.gpus, [kinds[key] for key in keys], spec.objective == "cost")
    if not any(len(group) for group in groups):
        raise UserError(
            f"{scenario.source}: search: no fleet can work: of {counts[0]:,} candidates {counts[1]:,} do not fit the "
            f"memory of their GPUs and {counts[2]:,} have degrees or settings that do not go together, or need more "
            f"than {spec.gpus} GPUs"
        )
    return Space(tuple(groups), kinds, *counts)


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


def _rated(
    kind: Kind, role: str, whole_unit: bool, asked: Asked, tpot: float, first: Demand | None, whole: Demand | None
) -> Rated:
    pool = kind.setup.pools[0]
    if role == "prefill":
        bound = np.inf if first is None else EngineBound(pool, "prefill").requests_per_second(first)
        return Rated(kind, bound, prompts_per_second(pool, asked))
    both = role == "serve" or whole_unit
    bound = np.inf
    if whole is not None:
        bound = EngineBound(pool, "serve" if both else "decode").requests_per_second(whole)
    return Rated(kind, bound, answers_per_second(pool, asked, tpot, prompts_too=both))


def _combined(
    scenario: SearchScenario,
    architecture: Architecture,
    quantization: str | None,
    router: str,
    rated: list[tuple[Rated, ...]],
    ceilings: tuple[Ceiling, Ceiling],
) -> Candidates:
    """Every number of engines, if a fleet's cost is what matters; else as many as there is room for."""
    spec = scenario.search
    every = spec.objective == "cost"
    ones, others = rated[0], rated[1] if len(rated) > 1 else ()
    rows = [np.empty((0, 4), dtype=np.int64)]
    for i, one in enumerate(ones):
        most = spec.gpus // one.kind.gpus
        if not others:
            numbers = np.arange(1, most + 1) if every else np.arange(most, most + 1)
            numbers = numbers[numbers > 0]
            rows.append(np.stack([np.full_like(numbers, i), numbers, np.full_like(numbers, -1), 0 * numbers], axis=1))
            continue
        for j, other in enumerate(others):
            rows.append(_splits(spec.gpus, i, one.kind.gpus, j, other.kind.gpus, every))
    first, firsts, second, seconds = np.concatenate(rows).T

    def total(what: Any) -> Any:
        mine = np.array([what(each) for each in ones] or [0])[first] * firsts
        return mine if not others else mine + np.array([what(each) for each in others])[second] * seconds

    def sides(what: Any) -> list[Floats]:
        mine = np.array([what(each) for each in ones] or [0.0], dtype=float)[first] * firsts
        return (
            [mine] if not others else [mine, np.array([what(each) for each in others], dtype=float)[second] * seconds]
        )

    bounds = sides(lambda each: each.bound)
    own = ceilings[1:] if not others else ceilings
    highest = [ceiling.of(bound) for ceiling, bound in zip(own, bounds, strict=True)]
    return Candidates(
        architecture,
        quantization,
        router,
        ones,
        tuple(others),
        *(first, firsts, second, seconds),
        bound=np.min(highest, axis=0),
        estimate=np.min(sides(lambda each: each.estimate), axis=0),
        gpus=total(lambda each: each.kind.gpus),
        usd_per_hour=total(lambda each: each.kind.usd_per_hour).astype(float),
        watts=total(lambda each: each.kind.watts).astype(float),
    )


def _splits(gpus: int, i: int, one: int, j: int, other: int, every: bool) -> Ints:
    """Numbers of engines of two kinds: each number of the first, with as many of the second as there is room for."""
    firsts = np.arange(1, gpus // one + 1)
    seconds = (gpus - firsts * one) // other
    if every:
        pairs = [(a, b) for a, most in zip(firsts.tolist(), seconds.tolist(), strict=True) for b in range(1, most + 1)]
        firsts, seconds = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    kept = seconds > 0
    firsts, seconds = firsts[kept], seconds[kept]
    return np.stack([np.full_like(firsts, i), firsts, np.full_like(firsts, j), seconds], axis=1)


def _count(counts: list[int], gpus: int, kinds: list[Kinds], every: bool) -> None:
    """Add an architecture's candidates: all, those without room, and those that are refused for other reasons."""
    ones, others = kinds[0].sizes, kinds[1].sizes if len(kinds) > 1 else {("works", 0): 1}
    for ((fate, size), number), ((other_fate, other), times) in product(ones.items(), others.items()):
        if other:
            each = len(_splits(gpus, 0, size, 0, other, every))
        else:
            each = gpus // size if every else min(1, gpus // size)
        fates = (fate, other_fate)
        counts[0] += each * number * times
        counts[1] += each * number * times * ("no room" in fates)
        counts[2] += each * number * times * ("no room" not in fates and "refused" in fates)
