"""Run a scenario."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from steelyard.collector import collector_off
from steelyard.cost import RESTED, HostTerms
from steelyard.engine import Engine, Pipeline
from steelyard.engine.policies import SglangSettings, policy_of
from steelyard.fleet import Desk, run_fleet
from steelyard.fleet.lockstep import Rank, step_together
from steelyard.scenario import Scenario
from steelyard.sim.attempts import gaps_between
from steelyard.sim.by_model import models_at
from steelyard.sim.dynamics import make_dynamics, never_happened
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.handovers import make_handover
from steelyard.sim.result import Result, parts_of, request_table
from steelyard.sim.routers import router_before
from steelyard.sim.setup import FleetSetup, Setup, set_up
from steelyard.sim.summarise import span, summarise
from steelyard.sim.tiers import make_tiers
from steelyard.workload import build_workload


def simulate(
    scenario: Scenario,
    *,
    host: HostTerms | None = None,
    factors: Mapping[str, float] | None = None,
    plain: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Simulate a scenario to its end.

    ``host`` stands in for the host's times that the scenario names, and ``factors`` scale the times of families of
    operators. ``plain`` takes every step one request at a time:
    the slow reference that the fast path must equal. ``progress`` is called now and then with (requests that have
    ended, requests in all).
    """
    setup = set_up(scenario, host, factors)
    acceptance = next((each.engine.accepted for each in setup.answers if each.engine.accepted), None)
    workload = build_workload(scenario.workload, scenario.seed, scenario.base_dir, acceptance)
    stages = [setup.takes_requests, setup.answers] if setup.hands_over else [setup.answers]
    limits = ([pool.limits for pool in stage] for stage in stages)
    desk = Desk(workload, *limits, host=setup.host, models=models_at(setup, stages))
    engines = _engines(setup, desk, plain)
    fleet = scenario.fleet
    handover = make_handover(setup) if setup.hands_over else None
    router = router_before(setup, setup.takes_requests, fleet.router, scenario.seed)
    dynamics = make_dynamics(setup, handover)
    total = len(workload)
    report = None if progress is None else lambda done: progress(done, total)
    with collector_off():
        run_fleet(engines, desk, router, report, handover, dynamics)
    logs = [engine.log for engine in engines]
    parts = parts_of(setup)
    requests = request_table(workload, desk, logs, parts, None if dynamics is None else dynamics.retries_of(total))
    gaps = TokenGaps.of(logs)
    notes = list(workload.notes)
    if dynamics is not None:
        gaps = gaps.with_further(gaps_between(logs, parts))
        notes += never_happened(dynamics, span(requests)[1])
    summary = summarise(setup, desk, engines, requests, gaps, dynamics, handover)
    return Result(scenario, summary, requests, gaps, logs, notes=notes)


def _engines(setup: FleetSetup, desk: Desk, plain: bool) -> list[Engine]:
    """Every replica's engine, ranks of one engine tied together."""
    tiers = iter(make_tiers(setup))
    engines: list[Engine] = []
    for each in setup.pools:
        policy = policy_of(each.engine.scheduler, SglangSettings(**each.engine.sglang.model_dump()))
        below = [next(tiers) for _ in range(each.ranks)]
        if each.stages:
            engines += [_pipeline(each, setup, desk, plain) for _ in below]
            continue
        own: list[Engine] = [
            (Rank if each.pool.dp > 1 else Engine)(
                each.limits,
                each.step_cost,
                desk.names,
                wake=setup.host.wake,
                taking_in=setup.host.taking_in,
                rested=RESTED,
                first_uses=each.cost.first_uses(),
                shared_reads=each.shared_reads,
                policy=policy,
                tiers=levels,
                reactive=bool(desk.followers) or each.pool.role == "prefill",
                plain=plain,
            )
            for levels in below
        ]
        step_together(own, each.pool.dp, each.cost)
        engines += own
    return engines


def _pipeline(each: Setup, setup: FleetSetup, desk: Desk, plain: bool) -> Engine:
    return Pipeline(
        each.limits,
        each.stages,
        desk.names,
        wake=setup.host.wake,
        taking_in=setup.host.taking_in,
        rested=RESTED,
        reactive=bool(desk.followers) or each.pool.role == "prefill",
        plain=plain,
    )
