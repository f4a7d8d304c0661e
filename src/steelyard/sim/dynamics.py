"""Faults and autoscaling of a scenario: set up for the fleet before a run, summed up for the summary after it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import inf

from steelyard.balance.autoscale import ByQueue, BySlo, Scaling, ScalingRule
from steelyard.fleet.dynamics import Crash, Dynamics, ReplicaPool, SlowGpu, SlowLink
from steelyard.fleet.handover import Handover
from steelyard.fleet.links import Link
from steelyard.fleet.uptime import HELD, SERVES, ReplicaState
from steelyard.scenario import AutoscaleSpec, ChangeSpec, CrashSpec, LinkSpec, SlowSpec
from steelyard.sim import summary
from steelyard.sim.setup import FleetSetup


def make_dynamics(setup: FleetSetup, handover: Handover | None, scaling: Scaling | None = None) -> Dynamics | None:
    """Faults and autoscaling of a fleet; None if it has neither. ``scaling`` takes the place of a pool's own."""
    scenario = setup.scenario
    wanted = {pool.name: pool for pool in scenario.fleet.pools}
    if not scenario.dynamics and not any(pool.autoscale for pool in wanted.values()):
        return None
    pools: dict[str, ReplicaPool] = {}
    first = 0
    for each in setup.pools:
        spec = wanted[each.pool.name]
        begins = each.ranks if spec.autoscale is None else spec.replicas
        model = each.serves if len(setup.models) > 1 else ""
        own = scaling if scaling is not None and spec.autoscale is not None else _scaling(spec.autoscale)
        pools[spec.name] = ReplicaPool(range(first, first + each.ranks), begins, own, model)
        first += each.ranks
    changes = [found for change in scenario.dynamics for found in _changes(change, pools, handover)]
    return Dynamics(list(pools.values()), changes)


def _changes(
    change: ChangeSpec, pools: dict[str, ReplicaPool], handover: Handover | None
) -> Iterator[Crash | SlowGpu | SlowLink]:
    until = inf if change.until is None else change.until
    for what in change.given().values():
        replicas = pools[what.pool].replicas
        for replica in replicas if what.replica is None else (replicas[what.replica],):
            if isinstance(what, CrashSpec):
                yield Crash(change.at, replica, inf if what.restart_after is None else what.restart_after)
            elif isinstance(what, SlowSpec):
                yield SlowGpu(change.at, until, replica, what.factor)
            else:
                assert handover is not None
                yield SlowLink(change.at, until, _link(what, replica, handover), what.factor)


def _link(what: LinkSpec, replica: int, handover: Handover) -> Link:
    ports = handover.transfers.ports
    port = ports.out[replica] if replica < handover.prefills else ports.into[replica - handover.prefills]
    return port.nic if what.of == "nic" else port.peer


def _scaling(spec: AutoscaleSpec | None) -> Scaling | None:
    if spec is None:
        return None
    rule: ScalingRule | None = None
    if spec.target is not None:
        rule = ByQueue(spec.target)
    elif spec.by == "slo":
        given = {"ttft": spec.ttft, "tpot": spec.tpot}
        limits = {metric: limit for metric, limit in given.items() if limit is not None}
        rule = BySlo(limits, spec.window, spec.percentile, spec.slack, spec.step)
    schedule = tuple((each.at, each.replicas) for each in spec.schedule)
    return Scaling(spec.min, spec.max, spec.startup, rule, spec.every, spec.cooldown, schedule)


def mean_shares_present(dynamics: Dynamics, start: float, end: float) -> list[float]:
    """By pool: the mean share of its replicas that held GPUs, from the decision to start one until it is off.

    A replica that starts, drains or restarts holds its GPUs, so it counts.
    """
    return [_share(dynamics, pool, HELD, start, end) for pool in dynamics.pools]


def _share(dynamics: Dynamics, pool: ReplicaPool, states: Collection[ReplicaState], start: float, end: float) -> float:
    room = (end - start) * len(pool.replicas)
    return dynamics.uptime.seconds(pool.replicas, states, start, end) / room if room > 0 else 1.0


def dynamics_figures(setup: FleetSetup, dynamics: Dynamics, start: float, end: float) -> summary.DynamicsFigures:
    """Crashes, retries, and replicas over time."""
    uptime = dynamics.uptime
    pools = tuple(
        summary.ServingFigures(
            name=each.pool.name,
            replicas=tuple(uptime.counts(pool.replicas, SERVES)),
            held=tuple(uptime.counts(pool.replicas, HELD)),
            gpu_hours_up=(end - start) * each.gpus * _share(dynamics, pool, SERVES, start, end) / 3600,
        )
        for each, pool in zip(setup.pools, dynamics.pools, strict=True)
    )
    return summary.DynamicsFigures(
        crashes=dynamics.crashed,
        retried_requests=len(dynamics.retries),
        retries=sum(dynamics.retries.values()),
        gpu_hours_up=sum(pool.gpu_hours_up for pool in pools),
        pools=pools,
    )


def missed_changes(dynamics: Dynamics, end: float) -> list[str]:
    """Notes on faults that were scheduled after all requests had ended."""
    late = sorted({change.at for change in dynamics.changes if change.at > end})
    return [f"dynamics: nothing happens at {at:g} s, since all was served by {end:.1f} s" for at in late]
