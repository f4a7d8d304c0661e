"""Run a scenario, or engines that were prepared before."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from steelyard.balance.autoscale import Scaling
from steelyard.balance.route import Router
from steelyard.collector import collector_off
from steelyard.cost import HostTerms
from steelyard.engine import Engine
from steelyard.errors import UserError, blaming
from steelyard.fleet import Desk, run_fleet
from steelyard.fleet.dynamics import Dynamics
from steelyard.fleet.handover import Handover
from steelyard.scenario import Scenario, SloSpec
from steelyard.scenario.checking import checked
from steelyard.scenario.workload import MixSpec
from steelyard.sim.attempts import EnginePart, gaps_between
from steelyard.sim.by_model import models_at
from steelyard.sim.dynamics import make_dynamics, missed_changes
from steelyard.sim.engines import make_engines
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.handovers import link_spans, make_handover
from steelyard.sim.hopeless import Hopeless
from steelyard.sim.prepared import Prepared
from steelyard.sim.request_table import parts_of, request_table
from steelyard.sim.result import EVERYTHING, Kept, Result
from steelyard.sim.routers import router_before
from steelyard.sim.setup import FleetSetup, fleet_of, set_up
from steelyard.sim.size import check_end, check_steps
from steelyard.sim.summarise import span, summarise
from steelyard.workload import Workload, build_workload


def simulate(
    what: Scenario | FleetSetup | Prepared,
    workload: Workload | MixSpec | Mapping[str, Any] | None = None,
    *,
    until: float | None = None,
    stop: SloSpec | Mapping[str, float] | None = None,
    keep: Collection[Kept] = EVERYTHING,
    host: HostTerms | None = None,
    factors: Mapping[str, float] | None = None,
    scaling: Scaling | None = None,
    plain: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Simulate a scenario, a fleet from `set_up`, or a prepared engine under a workload.

    For many runs of the same engines, call `set_up` or `prepare` once: then nothing is read, checked or compiled here.
    Without ``workload`` the scenario's own is drawn. A workload from `draw_workload` can be used for many runs.

    ``until`` is the virtual second at which the run is cut. ``stop`` are limits on percentiles, as in a scenario's
    ``slo``: the run ends as soon as one of them cannot be met any more. Requests that have not ended by then are
    "unfinished". ``keep`` names the parts of the result to keep.

    ``host`` replaces the host's times of the scenario. ``factors`` scale the times of operator families. ``scaling``
    decides in place of the `autoscale` that a pool has; it keeps its own state, so each run needs a new one. ``plain``
    handles every step one request at a time: the slow reference that the fast path must equal. ``progress`` is called
    every few requests with (ended requests, all requests).
    """
    setup = _set_up(what, workload, host, factors)
    drawn = workload if isinstance(workload, Workload) else draw_workload(setup)
    run = _Run.of(setup, drawn, plain, scaling)
    check_steps(setup, run.desk)
    cut = inf if until is None else until
    hopeless = None if stop is None else run.hopeless(stop)
    total = len(drawn)
    report = None if progress is None else lambda done: progress(done, total)
    with collector_off(), blaming(setup.scenario.source):
        run_fleet(run.engines, run.desk, run.router, report, run.handover, run.dynamics, cut, hopeless)
    check_end(max(engine.clock for engine in run.engines), setup.scenario.source)
    return run.result(keep, cut, hopeless)


def draw_workload(setup: FleetSetup, seed: int | None = None) -> Workload:
    """The requests of a fleet's scenario, by its own seed or another."""
    scenario = setup.scenario
    acceptance = next((each.engine.accepted for each in setup.answers if each.engine.accepted), None)
    number = scenario.seed if seed is None else seed
    with blaming(scenario.source):
        return build_workload(scenario.workload, number, scenario.base_dir, acceptance)


def _set_up(
    what: Scenario | FleetSetup | Prepared,
    workload: Workload | MixSpec | Mapping[str, Any] | None,
    host: HostTerms | None,
    factors: Mapping[str, float] | None,
) -> FleetSetup:
    """The fleet to run, with its scenario."""
    if isinstance(what, Scenario):
        scenario = what if workload is None or isinstance(workload, Workload) else what.replace(workload=workload)
        return set_up(scenario, host, factors)
    if host is not None or factors:
        raise UserError("simulate: host and factors are for scenarios; give them to prepare or set_up")
    if isinstance(what, Prepared):
        if workload is None or isinstance(workload, Workload):
            raise UserError("simulate: a prepared engine needs a workload as a scenario has it; or make a fleet_of it")
        return fleet_of(what, workload)
    if workload is None or isinstance(workload, Workload):
        return what
    return replace(what, scenario=what.scenario.replace(workload=workload))


@dataclass(frozen=True)
class _Run:
    """The objects of one run, all new."""

    setup: FleetSetup
    workload: Workload
    desk: Desk
    engines: list[Engine]
    router: Router
    handover: Handover | None
    dynamics: Dynamics | None
    parts: list[EnginePart]

    @classmethod
    def of(cls, setup: FleetSetup, workload: Workload, plain: bool, scaling: Scaling | None = None) -> _Run:
        scenario = setup.scenario
        stages = [setup.takes_requests, setup.answers] if setup.hands_over else [setup.answers]
        limits = ([pool.limits for pool in stage] for stage in stages)
        desk = Desk(workload, *limits, host=setup.host, models=models_at(setup, stages))
        handover = make_handover(setup) if setup.hands_over else None
        return cls(
            setup,
            workload,
            desk,
            make_engines(setup, desk.names, reactive=bool(desk.followers), plain=plain),
            router_before(setup, setup.takes_requests, scenario.fleet.router, scenario.seed),
            handover,
            make_dynamics(setup, handover, scaling),
            parts_of(setup),
        )

    def hopeless(self, stop: SloSpec | Mapping[str, float]) -> Hopeless | None:
        """The check that may end the run early; None for a fleet with dynamics, whose requests may start over."""
        limits = stop if isinstance(stop, SloSpec) else checked(SloSpec, stop, lambda _: "simulate: stop")
        return None if self.dynamics is not None else Hopeless(limits, self.desk, self.engines, self.parts)

    def result(self, keep: Collection[Kept], until: float, hopeless: Hopeless | None) -> Result:
        """The result, with the parts to keep."""
        unknown = [name for name in keep if name not in EVERYTHING]
        if unknown:
            raise UserError(f"simulate: keep: {unknown[0]!r} is not kept; choose from {', '.join(EVERYTHING)}")
        logs = [engine.log for engine in self.engines]
        found: dict[str, Any] = {"scenario": self.setup.scenario, "notes": self._notes(until, hopeless)}
        if "summary" in keep or "requests" in keep:
            retries = None if self.dynamics is None else self.dynamics.retries_of(len(self.workload))
            requests = request_table(self.workload, self.desk, logs, self.parts, retries, until)
            if self.dynamics is not None:
                found["notes"] += missed_changes(self.dynamics, span(requests)[1])
            found["requests"] = requests
        if "summary" in keep:
            gaps = TokenGaps.of(logs)
            if self.dynamics is not None:
                gaps = gaps.with_further(gaps_between(logs, self.parts))
            found["gaps"] = gaps
            found["summary"] = summarise(
                self.setup, self.desk, self.engines, requests, gaps, self.dynamics, self.handover
            )
        if "steps" in keep:
            found["logs"] = logs
            found["links"] = {} if self.handover is None else link_spans(self.handover.transfers.ports)
        if "requests" not in keep:
            found.pop("requests", None)
        return Result.of(**found)

    def _notes(self, until: float, hopeless: Hopeless | None) -> list[str]:
        notes = list(self.workload.notes)
        stateful = dict.fromkeys(pool.model.name for pool in self.setup.pools if pool.limits.states)
        notes += [f"{name} has recurrent layers: prefix caching is off, as in vLLM up to 0.27" for name in stateful]
        if until < inf:
            notes.append(f"the run was cut at {until:g} s; requests that had not ended by then are unfinished")
        if hopeless is not None and hopeless.found is not None:
            limit = hopeless.found
            notes.append(f"the run was stopped: {limit.name} <= {limit.seconds:g} s cannot be met any more")
        return notes
