"""Runs of what is compared, all with the same seeds, so that the same requests meet each fleet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from steelyard.scenario import Scenario
from steelyard.search.compare.figures import values_of
from steelyard.sim.intervals import Perturbation
from steelyard.sim.result import Result
from steelyard.sim.run import draw_workload, simulate
from steelyard.sim.setup import set_up
from steelyard.sim.summary import LimitVerdict
from steelyard.sim.workers import as_completed
from steelyard.workload import Workload

SHARES = np.linspace(0, 1, 201)
"""The quantiles of a distribution that are kept."""
DISTRIBUTIONS = ("ttft", "tpot", "e2e")

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class SeedRun:
    """One run, as far as a comparison needs it."""

    seed: int
    version: str  # of Steelyard
    values: dict[str, float | None]  # by the name of a compared figure
    limits: dict[str, LimitVerdict]
    bottleneck: str  # empty if nothing binds
    unsteady: str  # why the run is not steady; empty if it is
    requests: int
    asked: str  # a digest of all that clients asked; empty if only lengths are known
    lengths: str  # a digest of prompt and output lengths
    quantiles: dict[str, list[float]]  # seconds at `SHARES`, by distribution
    notes: tuple[str, ...]


@dataclass(frozen=True)
class RunTask:
    """A run to make: a scenario with a seed, and for some with changed costs."""

    scenario: Scenario
    seed: int
    change: Perturbation | None = None


def run_each(tasks: Sequence[RunTask], workers: int, progress: Progress | None) -> list[SeedRun]:
    """All runs, in the order of their tasks whatever the number of workers. One worker is this process."""
    found: dict[int, SeedRun] = {}
    for done, (place, run) in enumerate(_completed(tasks, workers), 1):
        found[place] = run
        if progress is not None:
            progress(done, len(tasks))
    return [found[place] for place in range(len(tasks))]


def _completed(tasks: Sequence[RunTask], workers: int) -> Iterator[tuple[int, SeedRun]]:
    return enumerate(map(seed_run, tasks)) if workers == 1 else as_completed(seed_run, tasks, workers)


def seed_run(task: RunTask) -> SeedRun:
    """Make one run."""
    scenario = task.scenario.replace(seed=task.seed)
    change = task.change or Perturbation({})
    setup = set_up(scenario, change.host, change.factors)
    workload = draw_workload(setup)
    return run_of(simulate(setup, workload, keep=("summary", "requests")), _digest(*_asked(workload)))


def run_of(result: Result, asked: str = "") -> SeedRun:
    """What a comparison needs of a result."""
    summary, requests = result.summary, result.requests
    return SeedRun(
        seed=summary.seed,
        version=summary.steelyard,
        values=values_of(summary),
        limits=dict(summary.slo),
        bottleneck="" if summary.bottleneck is None else _place(summary.bottleneck.cause, summary.bottleneck.pool),
        unsteady="" if summary.steady is not None or summary.unsteady is None else summary.unsteady.reason,
        requests=summary.requests,
        asked=asked,
        lengths=_digest(requests["prompt"], requests["output"]),
        quantiles={name: _quantiles(requests, name) for name in DISTRIBUTIONS},
        notes=tuple(result.notes),
    )


def _place(cause: str, pool: str) -> str:
    return f"{cause} ({pool})" if pool else cause


def _quantiles(requests: dict[str, Any], name: str) -> list[float]:
    """The distribution over finished requests; empty if there is none."""
    values = requests[name][requests["status"] == "finished"].astype(np.float64)
    values = values[np.isfinite(values)]
    found: list[float] = np.quantile(values, SHARES).tolist() if len(values) else []
    return found


def _asked(workload: Workload) -> Iterator[Any]:
    """All that clients decide. Accepted drafts and kept blocks belong to the fleet, and labels are names."""
    yield from (workload.at, workload.prompt, workload.output, workload.after, workload.think)
    yield from (workload.priority, workload.abort, workload.stream)
    yield workload.content
    if (rounds := workload.rounds) is not None:
        yield from (rounds.first, rounds.phase, rounds.opening)
        yield from (rounds.join_row, rounds.join_after, rounds.join_think)


def _digest(*columns: Any) -> str:
    found = sha256()
    for column in columns:
        found.update(column.tobytes() if isinstance(column, np.ndarray) else repr(column).encode())
    return found.hexdigest()[:16]
