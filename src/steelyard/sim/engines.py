"""The engines of a fleet, all new."""

from __future__ import annotations

from steelyard.cost import RESTED
from steelyard.engine import BlockNames, Engine, Pipeline
from steelyard.engine.policies import SglangSettings, policy_of
from steelyard.fleet.lockstep import Rank, step_together
from steelyard.sim.setup import FleetSetup, Setup
from steelyard.sim.tiers import make_tiers


def make_engines(setup: FleetSetup, names: BlockNames, *, reactive: bool = False, plain: bool = False) -> list[Engine]:
    """The engine of every replica; data-parallel ranks of one engine step together.

    ``reactive`` engines stop after each completion, since it may cause an arrival.
    """
    tiers = iter(make_tiers(setup))
    engines: list[Engine] = []
    for each in setup.pools:
        stops = reactive or each.pool.role == "prefill"
        policy = policy_of(each.engine.scheduler, SglangSettings(**each.engine.sglang.model_dump()))
        below = [next(tiers) for _ in range(each.ranks)]
        if each.stages:
            engines += [_pipeline(each, setup, names, stops, plain) for _ in below]
            continue
        own: list[Engine] = [
            (Rank if each.pool.dp > 1 else Engine)(
                each.limits,
                each.step_cost,
                names,
                wake=setup.host.wake,
                taking_in=setup.host.taking_in,
                rested=RESTED,
                first_uses=each.cost.first_uses(),
                shared_reads=each.shared_reads,
                policy=policy,
                tiers=levels,
                reactive=stops,
                plain=plain,
            )
            for levels in below
        ]
        step_together(own, each.pool.dp, each.cost)
        engines += own
    return engines


def _pipeline(each: Setup, setup: FleetSetup, names: BlockNames, reactive: bool, plain: bool) -> Engine:
    return Pipeline(
        each.limits,
        each.stages,
        names,
        wake=setup.host.wake,
        taking_in=setup.host.taking_in,
        rested=RESTED,
        reactive=reactive,
        plain=plain,
    )
