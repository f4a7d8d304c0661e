"""How sure a run's figures are: what becomes of them if the costs are as far off as they usually are.

Each thing that is only known within an error (a family of operators, the sum of a step, the host) is moved by one
standard error in a run of its own, and so is the seed where the workload is drawn. The changes, as ratios, add up in
squares. Figures of the steady window have an interval of their own for what the draw of requests does (batch means),
which takes the place of the seed.
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

STATED = 0.90  # share of the truth that the intervals are meant to hold
_WIDTH = 1.645  # standard errors to either side, for that
_SEEDS = 3
_FARTHEST = 100.0  # ratio of a figure to the lower end of its interval
_STEP_ERROR = 0.02  # of the sum of a step's operators, all of them known
_HOST_ERROR = 0.20  # of a usual host's terms, from host to host
_CALIBRATED_ERROR = 0.05  # of terms fitted to captures of the host itself
_MANY_STEPS = 20_000  # of a run, from which on processes are worth their start
STEADY = "steady."  # what names of the steady window's figures begin with
LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue")

Figures = dict[str, float]  # by dotted name, such as ttft.p99


@dataclass(frozen=True)
class Move:
    """One thing that may be off, moved by a standard error."""

    factors: Mapping[str, float]
    host: HostTerms | None = None
    seed: int | None = None


def intervals(
    result: Result, progress: Callable[[int, int], None] | None = None, workers: int | None = None
) -> dict[str, Interval]:
    """Where each figure of a run most likely lies, by its dotted name.

    The runs that this takes are shared out to ``workers`` processes: by default to none, or of a long run to all cores.
    """
    if workers is None:
        workers = free_cores() if result.summary.steps >= _MANY_STEPS else 0
    scenario = result.scenario
    base = figures(result.summary)
    moves = list(_moves(scenario))
    spread = dict.fromkeys(base, 0.0) | _sampled(result.summary)
    runs = run_all(partial(_moved, scenario), moves, workers)
    for done, (move, moved) in enumerate(zip(moves, runs, strict=True), 1):
        share = 1 / _SEEDS if move.seed is not None else 1.0
        for name, value in base.items():
            drawn = move.seed is not None and name.startswith(STEADY)
            if value > 0 and moved.get(name, 0.0) > 0 and not drawn:
                spread[name] += share * log(moved[name] / value) ** 2
        if progress is not None:
            progress(done, len(moves))
    wide = {name: exp(_WIDTH * sqrt(square)) for name, square in spread.items()}
    return {name: (value / wide[name], value * wide[name]) for name, value in base.items()}


def with_intervals(
    result: Result, progress: Callable[[int, int], None] | None = None, workers: int | None = None
) -> Result:
    """The same result, its summary saying how sure each figure is."""
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
    """Squared standard errors of the steady figures, as logarithms: by requests for these, by tokens for all others."""
    steady = summary.steady
    if steady is None:
        return {}
    by_requests = _error(steady.throughput.requests_per_s, steady.sampling["requests_per_s"])
    by_tokens = _error(steady.throughput.output_tokens_per_s, steady.sampling["output_tokens_per_s"])
    found = {name: by_tokens**2 for name in figures(summary) if name.startswith(STEADY)}
    return found | {f"{STEADY}requests_per_s": by_requests**2}


def _error(value: float, interval: Interval) -> float:
    """A standard error, as a logarithm of a ratio, by the farther end of an interval."""
    low, high = interval
    return log(max(high / value, value / max(low, value / _FARTHEST))) / _WIDTH if value > 0 else 0.0


def _moved(scenario: Scenario, move: Move) -> Figures:
    """The figures of a run with one thing moved."""
    if move.seed is not None:
        scenario = scenario.replace(seed=move.seed)
    return figures(simulate(scenario, host=move.host, factors=move.factors).summary)


def _moves(scenario: Scenario) -> Iterator[Move]:
    setup = set_up(scenario)
    yield Move(dict.fromkeys(FAMILIES, 1 + _STEP_ERROR))
    errors: dict[str, float] = {}
    for pool in setup.pools:
        for family, error in operator_errors(pool.cost).items():
            errors[family] = max(error, errors.get(family, 0.0))
    for family, error in errors.items():
        yield Move({family: 1 + error})
    yield Move({}, host=_slower(setup))
    if not _replayed(scenario):
        for seed in range(scenario.seed + 1, scenario.seed + 1 + _SEEDS):
            yield Move({}, seed=seed)


def _slower(setup: FleetSetup) -> HostTerms:
    error = _HOST_ERROR if setup.scenario.cost.calibration is None else _CALIBRATED_ERROR
    return replace(setup.host, **{name: value * (1 + error) for name, value in asdict(setup.host).items()})


def _replayed(scenario: Scenario) -> bool:
    """Whether the workload is a record that no seed changes."""
    return all(isinstance(spec.arrivals, TraceArrivals) and spec.trace is not None for spec in scenario.workload.mix)
