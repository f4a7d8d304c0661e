"""Single runs over a trace, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from steelyard.balance.autoscale import Scaling
from steelyard.search.advise.judge import ServedTraffic, Steps
from steelyard.search.advise.policies import PolicySettings, RuleMaker
from steelyard.search.advise.pool import AdvisedPool
from steelyard.sim import FleetSetup, simulate
from steelyard.sim.workers import as_completed
from steelyard.workload import Workload

_Task = TypeVar("_Task")
_Found = TypeVar("_Found")


def run_fixed(pool: AdvisedPool, work: Workload, replicas: int) -> ServedTraffic:
    """A fleet that stays as it is."""
    return ServedTraffic.of(simulate(pool.fixed(replicas), work, keep=["requests"]), replicas)


def run_policy(rules: RuleMaker, work: Workload, settings: PolicySettings) -> ServedTraffic:
    """A fleet under a policy."""
    return _scaled(rules.fleet, work, rules.scaling(settings))


def run_schedule(fleet: FleetSetup, work: Workload, schedule: Steps, startup: float) -> ServedTraffic:
    """A fleet whose sizes are known in advance."""
    most = max(size for _, size in schedule)
    return _scaled(fleet, work, Scaling(1, most, startup, schedule=schedule))


def _scaled(fleet: FleetSetup, work: Workload, scaling: Scaling) -> ServedTraffic:
    return ServedTraffic.of(simulate(fleet, work, scaling=scaling, keep=["requests", "summary"]), None)


class RunMeter:
    """Counts runs, and runs many at a time. Results are the same for any number of workers."""

    def __init__(self, workers: int, total: int, progress: Callable[[int, int], None]) -> None:
        self._workers, self._total, self._progress = workers, total, progress
        self._done = 0

    def all(self, function: Callable[[_Task], _Found], tasks: Sequence[_Task]) -> list[_Found]:
        """The function applied to each task, in order."""
        found: list[Any] = [None] * len(tasks)
        if self._workers > 1 and len(tasks) > 1:
            ended = as_completed(function, tasks, self._workers)
        else:
            ended = enumerate(map(function, tasks))
        for place, each in ended:
            found[place] = each
            self._done += 1
            self._progress(min(self._done, self._total), self._total)
        return cast(list[_Found], found)
