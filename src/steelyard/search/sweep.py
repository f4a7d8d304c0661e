"""A grid of scenarios, each simulated, or asked for the largest rate that it carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from steelyard.errors import UserError
from steelyard.records.jsontext import compact, plain
from steelyard.scenario import Scenario
from steelyard.scenario.load import ScenarioFile
from steelyard.scenario.overrides import Override
from steelyard.search.capacity import largest_rate
from steelyard.search.grid import GridAxis, points_of
from steelyard.search.journal import SearchJournal, point_key
from steelyard.search.limits import check_limits
from steelyard.search.loads import Load
from steelyard.sim.content import digest
from steelyard.sim.run import simulate
from steelyard.sim.setup import FleetSetup, set_up
from steelyard.sim.summary import Summary
from steelyard.sim.workers import as_completed

Row = dict[str, Any]
REFUSED = "refused"  # the reason why a point cannot work


@dataclass(frozen=True)
class SweepPlan:
    """What is to be run: a scenario file, changes for all points, and the axes of the grid."""

    file: ScenarioFile
    changes: tuple[Override, ...]
    axes: tuple[GridAxis, ...]
    capacity: bool = False  # whether each point's largest rate is wanted, not a simulation of its own rate

    @property
    def name(self) -> str:
        """The scenario's name."""
        return str(self.file.written.get("name", self.file.path.stem))

    @property
    def points(self) -> list[tuple[Override, ...]]:
        """The overrides of each point."""
        return list(points_of(self.axes))

    @property
    def subject(self) -> str:
        """The name of the scenario and a digest of what is written there: who may share a journal."""
        return f"sweep of {self.name} ({self._digest()[:12]})"

    @property
    def tag(self) -> str:
        """A digest of the whole sweep, for a folder's name."""
        return self._digest(self.capacity, *((axis.key, axis.labels) for axis in self.axes))[:6]

    def scenario(self, point: Sequence[Override]) -> Scenario:
        """The scenario of a point."""
        return self.file.scenario(Scenario, [*self.changes, *point])

    def _digest(self, *more: object) -> str:
        return digest(compact(self.file.written), [each.text for each in self.changes], *more)


def sweep_rows(
    plan: SweepPlan, journal: Path | None, workers: int = 0, progress: Callable[[int, int], None] | None = None
) -> list[Row]:
    """The row of each point of the grid, in its order. Points that a journal has are not run again.

    A point that cannot work has a reason instead of figures. If none can, that is an error.
    """
    points = plan.points
    keys, rows = _looked_at(plan, points)
    with SearchJournal.opened(journal, plan.subject) as kept:
        known = {} if kept is None else {key: row for key in keys if (row := kept.get(key)) is not None}
        todo = {key: point for key, point in zip(keys, points, strict=True) if key not in rows and key not in known}
        order = list(todo)
        Random(0).shuffle(order)  # points of all kinds from the start, so that the time left is estimated well
        for done, (key, row) in enumerate(_measured(plan, [(key, todo[key]) for key in order], workers), 1):
            rows[key] = row if REFUSED in row else plain(row) if kept is None else kept.put(key, row)
            if progress is not None:
                progress(done, len(todo))
        found = [rows.get(key) or known.get(key) or {} for key in keys]
    reasons = [row[REFUSED] for row in found if REFUSED in row]
    if len(reasons) == len(found):
        raise UserError(f"no point of the sweep can work; the first of {len(found):,}: {reasons[0]}")
    return found


def _looked_at(plan: SweepPlan, points: Sequence[Sequence[Override]]) -> tuple[list[str], dict[str, Row]]:
    """The key of each point; and the rows of those whose scenario is refused."""
    keys, rows = [], {}
    for number, point in enumerate(points):
        try:
            keys.append(point_key(plan.scenario(point), plan.capacity))
        except UserError as error:
            keys.append(f"refused {number}")
            rows[keys[-1]] = {REFUSED: _one_line(error)}
    return keys, rows


def _measured(
    plan: SweepPlan, tasks: Sequence[tuple[str, Sequence[Override]]], workers: int
) -> Iterator[tuple[str, Row]]:
    measure = partial(measured, plan)
    points = [point for _, point in tasks]
    ends = as_completed(measure, points, workers) if workers else enumerate(map(measure, points))
    return ((tasks[place][0], row) for place, row in ends)


def measured(plan: SweepPlan, point: Sequence[Override]) -> Row:
    """The figures of a point, or why it cannot work."""
    try:
        scenario = plan.scenario(point)
        return _carried(scenario) if plan.capacity else _simulated(scenario)
    except UserError as error:
        return {REFUSED: _one_line(error)}


def _simulated(scenario: Scenario) -> Row:
    summary = simulate(scenario, keep=["summary"]).summary
    flow = summary.throughput
    return {
        "gpus": summary.gpus,
        "requests_per_s": flow.requests_per_s,
        "output_tokens_per_s": flow.output_tokens_per_s,
        "output_tokens_per_s_per_gpu": flow.output_tokens_per_s_per_gpu,
        **_levels(summary),
        "goodput_share": summary.goodput.share,
        "usd_per_million_output_tokens": summary.cost.usd_per_million_output_tokens,
        "kv_peak_use": summary.kv.peak_use,
        "mfu": summary.mfu,
        "preemptions": summary.preemptions,
        "unserved": summary.requests - summary.outcomes.finished,
        "carried": _is_carried(summary),
        "bottleneck": "" if summary.bottleneck is None else summary.bottleneck.cause,
    }


def _levels(summary: Summary) -> Row:
    metrics = {name: summary.latencies[name].levels for name in ("ttft", "tpot", "e2e")}
    return {
        f"{metric}_{level}": metrics[metric][level] for metric in metrics for level in ("mean", "p50", "p95", "p99")
    }


def _is_carried(summary: Summary) -> bool:
    """Whether every limit is met, and requests do not pile up."""
    piles_up = summary.unsteady is not None and summary.unsteady.arrive_per_s is not None
    return not piles_up and all(limit.met for limit in summary.slo.values())


def _carried(scenario: Scenario) -> Row:
    check_limits(scenario)
    setup = set_up(scenario)
    found = largest_rate(setup, Load(scenario))
    tokens = 0.0 if found.outcome is None else found.rate * found.outcome.output_tokens
    price = usd_per_hour(setup)
    return {
        "gpus": setup.gpus,
        "rate": found.rate,
        "output_tokens_per_s": tokens,
        "output_tokens_per_s_per_gpu": tokens / setup.gpus,
        "usd_per_million_output_tokens": price / 3600 / tokens * 1e6 if tokens else None,
        "carried": found.rate > 0,
        **({} if found.outcome is None else found.outcome.values),
    }


def usd_per_hour(setup: FleetSetup) -> float:
    """What a fleet costs."""
    return sum(each.gpus * each.price_per_hour for each in setup.pools)


def _one_line(error: UserError) -> str:
    return "; ".join(str(error).splitlines())
