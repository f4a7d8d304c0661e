"""The pool under study: a scenario's engines, as a fixed fleet of any size or as one that scales."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steelyard.errors import UserError, shown
from steelyard.scenario import PoolSpec, Scenario
from steelyard.scenario.slo import RunLimit
from steelyard.search.advise.settings import AdviseSettings
from steelyard.sim import FleetSetup, draw_workload, set_up
from steelyard.workload import Workload
from steelyard.workload.columns import root_of, take


@dataclass(frozen=True)
class AdvisedPool:
    """A scenario of one pool, whose workload is a trace."""

    scenario: Scenario
    pool: PoolSpec

    @classmethod
    def of(cls, scenario: Scenario, trace: Path, speed: float) -> AdvisedPool:
        """Checked: one pool of engines that may come and go, with limits on percentiles of requests."""
        pools = scenario.fleet.pools
        place = scenario.source
        if len(pools) != 1 or pools[0].role != "serve" or pools[0].dp > 1:
            raise UserError(f"{place}: fleet: advise takes one pool of role serve, with dp 1; give such a fleet")
        if scenario.dynamics:
            raise UserError(f"{place}: dynamics: advise takes fleets without faults; remove it")
        limits = scenario.slo.on_run()
        if not limits:
            raise UserError(
                f"{place}: slo: advise needs limits on percentiles, such as {{ttft_p95: 1.0, tpot_p95: 0.05}}"
            )
        if any(limit.percentile is None for limit in limits):
            raise UserError(f"{place}: slo: advise judges single requests: give limits on percentiles, not on means")
        if any(limit.metric == "itl" for limit in limits):
            raise UserError(f"{place}: slo: advise judges whole requests, and itl is of single tokens; use tpot")
        workload = {"trace": {"file": str(trace.absolute())}, "arrivals": {"kind": "trace", "scale": speed}}
        return cls(scenario.replace(workload=workload), pools[0].model_copy(update={"autoscale": None}))

    @property
    def limits(self) -> list[RunLimit]:
        """The limits to meet."""
        return self.scenario.slo.on_run()

    def fixed(self, replicas: int) -> FleetSetup:
        """Always so many replicas."""
        return self._set_up(self.pool.replace(replicas=replicas))

    def scaled(self, begins: int, least: int, most: int, startup: float) -> FleetSetup:
        """From so many replicas on. The rule is given to each run."""
        autoscale = {"min": least, "max": most, "startup": startup, "target": 1.0}
        return self._set_up(self.pool.replace(replicas=begins, autoscale=autoscale))

    def _set_up(self, pool: PoolSpec) -> FleetSetup:
        fleet = self.scenario.fleet.model_copy(update={"pools": (pool,)})
        scenario = self.scenario.model_copy(update={"fleet": fleet})
        return set_up(scenario.based_in(self.scenario.base_dir, self.scenario.source))


def read_traffic(setup: FleetSetup, trace: Path, settings: AdviseSettings) -> tuple[Workload, float]:
    """The requests of the part of the trace that is asked for, from second 0 on; and the seconds of all of it."""
    whole = draw_workload(setup)
    speed, first = settings.speed, float(np.nanmin(whole.at))  # a trace need not begin with a request
    end = None if settings.end is None else first + settings.end / speed
    cut = between(whole, first + settings.start / speed, end)
    if len(cut) < 2 or not np.nanmax(cut.at) > 0:
        part = f"from second {settings.start:g}" + ("" if settings.end is None else f" to {settings.end:g}")
        raise UserError(
            f"{shown(trace)}: {len(cut)} of its {len(whole)} requests are {part}; at least two, at different times, "
            "are needed"
        )
    return cut, (float(np.nanmax(whole.at)) - first) * speed


def between(work: Workload, start: float, end: float | None) -> Workload:
    """Requests whose chain starts in a part of the trace, which then begins at second 0."""
    began = work.at[root_of(work.after)]
    kept = began >= start if end is None else (began >= start) & (began < end)
    found = take(work, np.flatnonzero(kept))
    found.at = found.at - start
    return found
