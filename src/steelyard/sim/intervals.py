"""Intervals of a run's figures, from repeated runs with perturbed costs and other seeds.

Each input with an error (a family of operators, the sum of a step, the host) is changed by one standard error in a run
of its own. If the workload is drawn, it is also run with other seeds. The resulting changes, as logarithms of ratios,
add up in squares. Figures of the steady window have a sampling interval (batch means), which replaces that of seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import exp, log, sqrt

from steelyard.cost import HostTerms
from steelyard.cost.errors import operator_errors
from steelyard.cost.scaled import FAMILIES
from steelyard.scenario import Scenario, TraceArrivals
from steelyard.sim.result import Result
from steelyard.sim.run import simulate
from steelyard.sim.setup import FleetSetup, set_up
from steelyard.sim.summary import Interval, Intervals, Summary
from steelyard.sim.workers import free_cores, run_all

STATED = 0.90  # nominal coverage
_WIDTH = 1.645  # standard errors to either side, for that coverage
_SEEDS = 3
_FARTHEST = 100.0  # ratio of a figure to the lower end of its interval
_STEP_ERROR = 0.02  # relative error of a step's sum if all its operators are exact
_HOST_ERROR = 0.20  # relative error of the default host's times
_CALIBRATED_ERROR = 0.05  # relative error of times fitted to captures of the host
_MANY_STEPS = 20_000  # steps of a run, above which worker processes pay
STEADY = "steady."  # prefix of the steady window's figures
LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue")

Figures = dict[str, float]  # by dotted name, such as ttft.p99


@dataclass(frozen=True)
class Perturbation:
    """One input changed by a standard error, or another seed."""

    factors: Mapping[str, float]
    host: HostTerms | None = None
    seed: int | None = None
    name: str = ""  # of the input


def intervals(
    result: Result, progress: Callable[[int, int], None] | None = None, workers: int | None = None
) -> dict[str, Interval]:
    """The interval of each figure, by its dotted name.

    The runs are spread over ``workers`` processes. The default is none, or all cores for a long run.
    """
    if workers is None:
        workers = free_cores() if result.summary.steps >= _MANY_STEPS else 0
    scenario = result.scenario
    base = figures(result.summary)
    changes = list(perturbations(scenario))
    spread = dict.fromkeys(base, 0.0) | _sampled(result.summary)
    runs = run_all(partial(_perturbed, scenario), changes, workers)
    for done, (change, moved) in enumerate(zip(changes, runs, strict=True), 1):
        share = 1 / _SEEDS if change.seed is not None else 1.0
        for name, value in base.items():
            drawn = change.seed is not None and name.startswith(STEADY)
            if value > 0 and moved.get(name, 0.0) > 0 and not drawn:
                spread[name] += share * log(moved[name] / value) ** 2
        if progress is not None:
            progress(done, len(changes))
    wide = {name: exp(_WIDTH * sqrt(square)) for name, square in spread.items()}
    return {name: (value / wide[name], value * wide[name]) for name, value in base.items()}


def with_intervals(
    result: Result, progress: Callable[[int, int], None] | None = None, workers: int | None = None
) -> Result:
    """The same result with intervals in its summary."""
    found = Intervals(STATED, intervals(result, progress, workers))
    return replace(result, summary=replace(result.summary, intervals=found))


def figures(summary: Summary) -> Figures:
    """The figures of a summary that get an interval."""
    latencies = ((metric, summary.latencies[metric].levels) for metric in LATENCIES)
    found = {f"{metric}.{name}": value for metric, levels in latencies for name, value in levels.items()}
    found |= {f"throughput.{name}": value for name, value in summary.throughput.to_dict().items()}
    found["duration_s"] = summary.duration_s
    if summary.steady is not None:
        found |= {f"{STEADY}{name}": value for name, value in summary.steady.throughput.to_dict().items()}
        found[f"{STEADY}usd_per_million_tokens"] = summary.steady.usd_per_million_tokens
        found[f"{STEADY}usd_per_million_output_tokens"] = summary.steady.usd_per_million_output_tokens
    return {name: float(value) for name, value in found.items() if value is not None}


def _sampled(summary: Summary) -> dict[str, float]:
    """Squared standard errors of the steady figures, as logarithms. Rates of requests have their own, all others
    that of tokens."""
    steady = summary.steady
    if steady is None:
        return {}
    by_requests = _error(steady.throughput.requests_per_s, steady.sampling["requests_per_s"])
    by_tokens = _error(steady.throughput.output_tokens_per_s, steady.sampling["output_tokens_per_s"])
    found = {name: by_tokens**2 for name in figures(summary) if name.startswith(STEADY)}
    return found | {f"{STEADY}requests_per_s": by_requests**2}


def _error(value: float, interval: Interval) -> float:
    """The standard error, as the logarithm of a ratio, from the farther end of an interval."""
    low, high = interval
    return log(max(high / value, value / max(low, value / _FARTHEST))) / _WIDTH if value > 0 else 0.0


def _perturbed(scenario: Scenario, change: Perturbation) -> Figures:
    """The figures of a run with one change."""
    if change.seed is not None:
        scenario = scenario.replace(seed=change.seed)
    return figures(simulate(scenario, host=change.host, factors=change.factors).summary)


def perturbations(scenario: Scenario, seeds: int = _SEEDS) -> Iterator[Perturbation]:
    """All inputs that have an error, each changed by one standard error, and other seeds."""
    yield from cost_perturbations(set_up(scenario)).values()
    if not _replayed(scenario):
        for seed in range(scenario.seed + 1, scenario.seed + 1 + seeds):
            yield Perturbation({}, seed=seed)


def cost_perturbations(setup: FleetSetup) -> dict[str, Perturbation]:
    """By name, each source of step times changed by one standard error: the sum of a step, each family of operators,
    the host."""
    errors: dict[str, float] = {}
    for pool in setup.pools:
        for family, error in operator_errors(pool.cost).items():
            errors[family] = max(error, errors.get(family, 0.0))
    changes = {"step": Perturbation(dict.fromkeys(FAMILIES, 1 + _STEP_ERROR), name="step")}
    changes |= {family: Perturbation({family: 1 + error}, name=family) for family, error in errors.items()}
    return changes | {"host": Perturbation({}, host=_slower(setup), name="host")}


def _slower(setup: FleetSetup) -> HostTerms:
    error = _HOST_ERROR if setup.scenario.cost.calibration is None else _CALIBRATED_ERROR
    return replace(setup.host, **{name: value * (1 + error) for name, value in asdict(setup.host).items()})


def _replayed(scenario: Scenario) -> bool:
    """Whether the workload is a trace, which no seed changes."""
    return all(isinstance(spec.arrivals, TraceArrivals) and spec.trace is not None for spec in scenario.workload.mix)
