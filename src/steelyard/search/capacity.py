"""The largest rate that a fleet carries, and the smallest fleet that carries a rate.

A rate is carried if `simulate` at that rate meets every limit on the run, and requests do not pile up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from math import exp, gcd, log, sqrt

from steelyard.scenario import PoolSpec, Scenario
from steelyard.scenario.numbers import MOST_REQUESTS
from steelyard.scenario.slo import SloSpec
from steelyard.search.limits import check_limits
from steelyard.search.loads import Load
from steelyard.search.outcome import LoadOutcome, observe
from steelyard.sim.intervals import Perturbation, perturbations
from steelyard.sim.setup import FleetSetup, set_up
from steelyard.sim.workers import run_all
from steelyard.workload import build_workload

RESOLUTION = 1.005  # ratio of the lowest rate that is not carried to the highest that is
_COARSE = 1.01  # the same for repetitions, whose spread is wider
_NEAR = 1.04  # first step of a repetition from the answer
_LONGER = 4  # times as many requests, to see whether the scenario has enough
_MOST_RATE, _LEAST_RATE = 1e6, 1e-5
_MOST_FLEET = 4096  # copies of the smallest fleet with the same proportions
_WIDTH = 1.645  # standard errors to either side of a 90 % interval


@dataclass(frozen=True)
class Rate:
    """The largest rate that is carried, and what happens just above it."""

    rate: float  # 0 if none is
    outcome: LoadOutcome | None  # at this rate
    above: LoadOutcome | None  # at the lowest rate that was tried and is not carried
    tried: int


@dataclass(frozen=True)
class Capacity:
    """The answer for a fleet: the largest rate by the scenario as it is written, and how sure that is."""

    found: Rate
    binds: str  # the limit that ends it
    longer: float | None  # the answer with several times as many requests
    seeds: tuple[float, ...]  # answers with other seeds
    costs: dict[str, float]  # answers if one input is off by its standard error
    gpus: int
    interval: tuple[float, float] | None  # 90 %, of seeds and errors of costs together

    @property
    def rate(self) -> float:
        """Arrivals per second."""
        return self.found.rate


def nearby(rate: float) -> float:
    """A rate to begin at, on a scale: what `largest_rate` finds from any of its rates is the same, up to rounding."""
    return float(_NEAR ** round(log(rate) / log(_NEAR)))


def largest_rate(
    setup: FleetSetup,
    load: Load,
    *,
    seed: int | None = None,
    requests: int | None = None,
    near: float | None = None,
    good: float | None = None,
) -> Rate:
    """The largest rate that a prepared fleet carries, to half a percent. ``near`` is a rate to begin at."""
    slo = load.scenario.slo
    tried = 0

    def outcome(rate: float) -> LoadOutcome:
        nonlocal tried
        tried += 1
        return observe(setup, load.at(rate, requests), seed=seed, stop=None if good is not None else slo)

    carried: tuple[float, LoadOutcome] | None = None
    missed: tuple[float, LoadOutcome] | None = None
    rate, step = near or load.own, 2.0 if near is None else _NEAR
    while carried is None or missed is None:
        found = outcome(rate)
        if found.meets(slo, good):
            carried = rate, found
            rate *= step
        else:
            missed = rate, found
            rate /= step
        step *= step if near is not None and step < 2 else 1
        if rate > _MOST_RATE or rate < _LEAST_RATE:
            break
    if carried is None:
        return Rate(0.0, None, None if missed is None else missed[1], tried)
    while missed is not None and missed[0] / carried[0] > (RESOLUTION if near is None else _COARSE):
        rate = sqrt(carried[0] * missed[0])
        found = outcome(rate)
        if found.meets(slo, good):
            carried = rate, found
        else:
            missed = rate, found
    return Rate(*carried, None if missed is None else missed[1], tried)


def capacity(
    scenario: Scenario,
    *,
    seeds: int = 3,
    costs: bool = True,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Capacity:
    """The largest rate of a scenario's fleet within its limits, and how sure that is."""
    check_limits(scenario)
    load, setup = Load(scenario), set_up(scenario)
    found = largest_rate(setup, load)
    binds = "" if found.above is None else _breaks(scenario, setup, load, found)
    if not found.rate:
        return Capacity(found, binds, None, (), {}, setup.gpus, None)
    tasks = _repetitions(scenario, seeds, costs)
    answers: list[float] = []
    for done, each in enumerate(run_all(partial(_repeated, scenario, found.rate), tasks, workers), 1):
        answers.append(each)
        if progress is not None:
            progress(done, len(tasks))
    by_name = dict(zip((name for name, _, _ in tasks), answers, strict=True))
    others = tuple(rate for name, rate in by_name.items() if name.startswith("seed"))
    errors = {name.removeprefix("cost "): rate for name, rate in by_name.items() if name.startswith("cost")}
    interval = _interval(found.rate, others, errors.values())
    return Capacity(found, binds, by_name.get("longer"), others, errors, setup.gpus, interval)


def _breaks(scenario: Scenario, setup: FleetSetup, load: Load, found: Rate) -> str:
    """The limit that is broken first: by a whole run just above the answer."""
    return _missed(observe(setup, load.at((found.rate or load.own) * RESOLUTION)), scenario.slo)


def _missed(whole: LoadOutcome, slo: SloSpec) -> str:
    """The limit that a whole run misses by most. A run that was stopped early seems to miss all of them."""
    return "overload" if whole.overloaded and whole.meets_limits(slo) else whole.worst(slo)


Repetition = tuple[str, int, Perturbation]  # its name, times as many requests, and what is changed


def _repetitions(scenario: Scenario, seeds: int, costs: bool) -> list[Repetition]:
    plain = Perturbation({})
    tasks: list[Repetition] = [("longer", _LONGER, plain)]
    for change in perturbations(scenario, seeds):
        if change.seed is not None:
            tasks.append((f"seed {change.seed}", 1, change))
        elif costs:
            tasks.append((f"cost {change.name}", 1, change))
    return tasks


def _repeated(scenario: Scenario, near: float, task: Repetition) -> float:
    """The answer of a repetition."""
    _, times, change = task
    load = Load(scenario)
    requests = None
    if times > 1:
        drawn = len(build_workload(scenario.workload, scenario.seed, scenario.base_dir))
        requests = min(MOST_REQUESTS, times * drawn)
    setup = set_up(scenario, change.host, change.factors)
    return largest_rate(setup, load, seed=change.seed, requests=requests, near=near).rate


def _interval(rate: float, seeds: Sequence[float], costs: Collection[float]) -> tuple[float, float]:
    """The 90 % interval around an answer; errors add up in squares, as logarithms of ratios."""
    square = sum(log(max(each, _LEAST_RATE) / rate) ** 2 for each in costs)
    if seeds:
        square += sum(log(max(each, _LEAST_RATE) / rate) ** 2 for each in seeds) / len(seeds)
    square += log(RESOLUTION) ** 2
    wide = exp(_WIDTH * sqrt(square))
    return rate / wide, rate * wide


# -- the smallest fleet ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FleetSize:
    """The smallest fleet of given proportions that carries a rate."""

    rate: float
    copies: int  # of the smallest fleet with these proportions; 0 if none is enough
    pools: dict[str, int]  # replicas by pool
    gpus: int
    usd_per_hour: float
    binds: str  # what one copy less would miss


def smallest_fleet(scenario: Scenario, rate: float | None = None) -> FleetSize:
    """The smallest fleet with the proportions of the scenario's pools that carries a rate, by default its own."""
    check_limits(scenario)
    load = Load(scenario)
    wanted = load.at(load.own if rate is None else rate)
    setup = set_up(scenario)
    unit = reduce(gcd, (pool.replicas for pool in scenario.fleet.pools))

    def outcome(copies: int, stop: SloSpec | None = wanted.slo) -> LoadOutcome:
        sized = resized(wanted, copies, unit)
        return observe(_resized_setup(setup, sized), sized, stop=stop)

    enough = 1
    while enough <= _MOST_FLEET and not outcome(enough).meets(wanted.slo):
        enough *= 2
    if enough > _MOST_FLEET:
        return FleetSize(rate or load.own, 0, {}, 0, 0.0, _missed(outcome(_MOST_FLEET, None), wanted.slo))
    less = enough // 2
    while enough - less > 1:
        middle = (enough + less) // 2
        enough, less = (middle, less) if outcome(middle).meets(wanted.slo) else (enough, middle)
    final = _resized_setup(setup, resized(wanted, enough, unit))
    binds = _missed(outcome(less, None), wanted.slo) if less else ""
    return FleetSize(
        rate or load.own,
        enough,
        {each.pool.name: each.pool.replicas for each in final.pools},
        final.gpus,
        sum(each.gpus * each.price_per_hour for each in final.pools),
        binds,
    )


def resized(scenario: Scenario, copies: int, unit: int) -> Scenario:
    """The scenario with ``copies`` times the smallest fleet of its proportions."""
    fleet = scenario.fleet
    written = fleet.model_dump(exclude_unset=True)
    for pool, each in zip(fleet.pools, written["pools"], strict=True):
        each["replicas"] = pool.replicas // unit * copies
    if fleet.of_role("attention"):
        written["afd"] = {**written.get("afd", {}), "units": max(1, fleet.afd.units // unit) * copies}
    return scenario.replace(fleet=written)


def _resized_setup(setup: FleetSetup, scenario: Scenario) -> FleetSetup:
    """The prepared engines of another number of replicas: nothing has to be prepared again."""
    by_name: dict[str, PoolSpec] = {pool.name: pool for pool in scenario.fleet.pools}
    pools = tuple(replace(each, pool=by_name[each.pool.name]) for each in setup.pools)
    return replace(setup, scenario=scenario, pools=pools)
