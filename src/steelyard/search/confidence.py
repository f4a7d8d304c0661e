"""How sure an answer is: the best fleet and the next best, with other seeds and with costs off by their stated errors.

Both fleets see the same requests and the same errors, so what is common to both cancels. Differences of the logarithms
of their scores add up in squares: those by errors of costs, and the standard error of the mean over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import erf, exp, log, sqrt
from statistics import mean, stdev
from typing import Any

from steelyard.scenario.search import SearchScenario
from steelyard.search.capacity import largest_rate
from steelyard.search.crew import crew_of
from steelyard.search.journal import SearchJournal, point_key
from steelyard.search.kinds import as_scenario
from steelyard.search.loads import Load
from steelyard.search.search import FleetChoice
from steelyard.search.simulations import levels_of
from steelyard.sim.intervals import perturbations
from steelyard.sim.setup import set_up

SEEDS = 4  # beside the scenario's own
_ROUNDING = 0.005  # relative error of a rate that is found to one percent


@dataclass(frozen=True)
class Repeat:
    """One answer to be found again: a fleet at a level, with one input changed."""

    fleet: Mapping[str, Any]
    quantization: str | None
    level: str
    near: float
    requests: int
    change: str  # the input that is off by its error, or empty
    seed: int | None


@dataclass(frozen=True)
class Sureness:
    """What becomes of the best and the next best if one input changes, and the chance that the best is better.

    With the objective ``cost`` the rate to be carried stands for the next best: the chance is that it is carried.
    """

    rates: dict[str, tuple[float, float]]  # by what is changed: requests per second of the best and of the next best
    weights: tuple[float, float]  # score of one request per second of each
    chance: float  # that the best is better than the next best
    margin: float  # its score over that of the next best, mean over seeds

    def overturned(self) -> list[str]:
        """Changes by which the next best becomes better."""
        a, b = self.weights
        return [name for name, (one, other) in self.rates.items() if one * a < other * b]


def sureness(
    scenario: SearchScenario,
    best: FleetChoice,
    other: FleetChoice,
    requests: int,
    *,
    book: SearchJournal | None = None,
    workers: int | None = None,
    ray: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Sureness:
    """Compare the best and the next best choice of a level."""
    base = as_scenario(scenario, best.fleet, best.quantization)
    changes = [(each.name, each.seed) for each in perturbations(base, SEEDS)]
    tasks = [
        Repeat(each.fleet, each.quantization, each.level, each.rate, requests, name, seed)
        for name, seed in [("", None), *changes]
        for each in (best, other)
    ]
    rates: list[float] = [0.0] * len(tasks)
    missing: list[int] = []
    keys = [point_key(scenario, task, "repeat") for task in tasks]
    for i, key in enumerate(keys):
        row = None if book is None else book.get(key)
        if row is None:
            missing.append(i)
        else:
            rates[i] = row["rate"]
    with crew_of(partial(repeated, scenario), workers, ray) as crew:
        for done, (place, rate) in enumerate(crew.work([tasks[i] for i in missing]), 1):
            rates[missing[place]] = rate
            if book is not None:
                book.put(keys[missing[place]], {"rate": rate})
            if progress is not None:
                progress("repetitions", done, len(missing))
    names = ["as it is", *(name or f"seed {seed}" for name, seed in changes)]
    pairs = dict(zip(names, zip(rates[::2], rates[1::2], strict=True), strict=True))
    if scenario.search.objective == "cost":  # prices are known: what may be wrong is that it carries the rate
        return _judged({name: (one, best.rate) for name, (one, _) in pairs.items()}, (1.0, 1.0))
    return _judged(pairs, (best.score / best.rate, other.score / other.rate))


def repeated(scenario: SearchScenario, task: Repeat) -> float:
    """The largest rate of a fleet with one input changed, to one percent."""
    slo = levels_of(scenario)[task.level]
    base = as_scenario(scenario, dict(task.fleet), task.quantization).replace(slo=slo)
    change = next((each for each in perturbations(base, 0) if each.name == task.change), None)
    setup = set_up(base) if change is None else set_up(base, change.host, change.factors)
    load = Load(base)
    found = largest_rate(setup, load, seed=task.seed, requests=task.requests, near=task.near, good=scenario.search.good)
    return found.rate


def _judged(pairs: dict[str, tuple[float, float]], weights: tuple[float, float]) -> Sureness:
    a, b = weights
    apart = {name: log(max(one * a, 1e-12) / max(other * b, 1e-12)) for name, (one, other) in pairs.items()}
    base = apart["as it is"]
    seeds = [base, *(value for name, value in apart.items() if name.startswith("seed"))]
    costs = [value - base for name, value in apart.items() if name != "as it is" and not name.startswith("seed")]
    spread = stdev(seeds) / sqrt(len(seeds)) if len(seeds) > 1 else 0.0
    error = sqrt(spread**2 + sum(each**2 for each in costs) + 2 * _ROUNDING**2)
    middle = mean(seeds)
    return Sureness(pairs, weights, 0.5 * (1 + erf(middle / error / sqrt(2))), exp(middle))
