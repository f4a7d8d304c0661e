"""From a run to its summary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version

import numpy as np

from steelyard.cost import PROVENANCES
from steelyard.engine import Engine
from steelyard.fleet import Desk
from steelyard.fleet.dynamics import Dynamics as FleetDynamics
from steelyard.fleet.handover import Handover
from steelyard.sim.bottleneck import bottleneck
from steelyard.sim.by_model import figures_by_model
from steelyard.sim.dynamics import dynamics_figures, mean_shares_present
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.handovers import last_transfer, link_use
from steelyard.sim.service import cost_of, goodput_of, steady_figures, throughput_of, verdicts
from steelyard.sim.setup import FleetSetup
from steelyard.sim.spread import Column, spread_of, spread_of_gaps
from steelyard.sim.summary import (
    FirstUseFigures,
    KvUse,
    MemoryFigures,
    Outcomes,
    PoolFigures,
    PrefixCache,
    Provenance,
    Steady,
    Summary,
    Unsteady,
)
from steelyard.sim.tiers import by_tier
from steelyard.sim.usage import pool_figures


def summarise(
    setup: FleetSetup,
    desk: Desk,
    engines: Sequence[Engine],
    requests: dict[str, Column],
    gaps: TokenGaps,
    dynamics: FleetDynamics | None = None,
    handover: Handover | None = None,
) -> Summary:
    """The summary of a run."""
    scenario, answers = setup.scenario, setup.answers[0]
    finished = requests["status"] == "finished"
    start, end = span(requests)
    duration = end - start
    outcomes = Outcomes(
        *(int((requests["status"] == s).sum()) for s in ("finished", "rejected", "aborted", "unfinished"))
    )
    prompt, output = int(requests["prompt"][finished].sum()), int(requests["output"][finished].sum())
    # By pool: the mean share of its replicas that held GPUs.
    present = [1.0] * len(setup.pools) if dynamics is None else mean_shares_present(dynamics, start, end)
    gpus = [each.gpus * share for each, share in zip(setup.pools, present, strict=True)]
    gpu_hours = duration * sum(gpus) / 3600
    price = sum(count * each.price_per_hour for count, each in zip(gpus, setup.pools, strict=True)) / sum(gpus)
    worked = _worked_until(end, engines, handover)
    in_use = present if dynamics is None or worked == end else mean_shares_present(dynamics, start, worked)
    pools = pool_figures(setup, engines, desk.output, worked - start, in_use)
    kv, mfu, mbu, busy, provenance = _whole(pools, gpus, setup.pools.index(answers))
    cached = _prefix_cache(requests)
    logs = [engine.log for engine in engines]
    links = {} if handover is None else link_use(handover.transfers.ports, worked - start)
    steady = steady_figures(scenario, desk.workload, requests, logs, sum(gpus), price)
    return Summary(
        name=scenario.name,
        seed=scenario.seed,
        steelyard=_version(),
        model=" + ".join(dict.fromkeys(each.model.name for each in setup.pools)),
        gpu=" + ".join(dict.fromkeys(each.gpu.name for each in setup.pools)),
        gpus=setup.gpus,
        replicas=len(engines),
        tp=answers.pool.tp,
        layout=str(answers.layout),
        requests=len(requests["id"]),
        outcomes=outcomes,
        steps=sum(engine.log.ran for engine in engines),
        duration_s=duration,
        ttft=spread_of(requests["ttft"][finished]),
        attft=spread_of(requests["attft"][finished]),
        tpot=spread_of(requests["tpot"][finished]),
        itl=spread_of_gaps(gaps),
        e2e=spread_of(requests["e2e"][finished]),
        queue=spread_of(requests["queue"][finished]),
        throughput=throughput_of(duration, outcomes.finished, prompt, output, sum(gpus)),
        goodput=goodput_of(scenario.slo, requests, duration),
        slo=verdicts(scenario.slo, requests, gaps),
        steady=steady if isinstance(steady, Steady) else None,
        preemptions=int(requests["preemptions"].sum()),
        prefix_cache=by_tier(setup, engines, cached, start, worked),
        kv=kv,
        mfu=mfu,
        mbu=mbu,
        busy=busy,
        provenance=provenance,
        gpu_hours=gpu_hours,
        cost=cost_of(price, gpu_hours, prompt, output),
        memory=MemoryFigures(**answers.memory.summary()),
        sources=_sources(setup),
        pools=pools,
        intervals=None,
        unsteady=steady if isinstance(steady, Unsteady) else None,
        bottleneck=bottleneck(setup, logs, pools, links, worked - start),
        compiled_on_first_use=_first_uses(engines),
        dynamics=None if dynamics is None else dynamics_figures(setup, dynamics, start, end),
        models=figures_by_model(desk, requests, duration),
        links=links,
    )


def _worked_until(end: float, engines: Sequence[Engine], handover: Handover | None) -> float:
    """The end of the last request, or of the last step or transfer: requests may be aborted during a long one."""
    ends = [engine.log.ends[-1] for engine in engines if engine.log.ends]
    if handover is not None:
        ends.append(last_transfer(handover.transfers.ports))
    return max([end, *ends])


def _sources(setup: FleetSetup) -> dict[str, str]:
    """The source of each operator's times. Prefill engines have no decode operators."""
    return {
        name: source
        for each in setup.pools
        for name, source in sorted(each.cost.chosen.items())
        if name != "decode attention" or each.pool.role != "prefill"
    }


@cache
def _version() -> str:
    """The package's version, looked up once: that takes as long as a twentieth of a small run."""
    return version("steelyard")


def span(requests: dict[str, Column]) -> tuple[float, float]:
    """First submission to last end."""
    arrivals = requests["arrival"][np.isfinite(requests["arrival"])]
    ends = requests["finish"][np.isfinite(requests["finish"])]
    if not len(arrivals) or not len(ends):
        return 0.0, 0.0
    return float(arrivals.min()), float(ends.max())


def _whole(
    pools: Sequence[PoolFigures], gpus: list[float], answers: int
) -> tuple[KvUse, float, float, float, Provenance]:
    """Use of the whole fleet, weighted by GPUs. KV blocks are those of the pool that answers."""

    def mean(values: list[float], counts: Sequence[float] = gpus) -> float:
        total = sum(counts)
        return sum(value * count for value, count in zip(values, counts, strict=True)) / total if total else 0.0

    by_pool = [pool.provenance.to_dict() for pool in pools]
    ran = [count if pool.steps else 0.0 for pool, count in zip(pools, gpus, strict=True)]
    return (
        pools[answers].kv,
        mean([pool.mfu for pool in pools]),
        mean([pool.mbu for pool in pools]),
        mean([pool.busy for pool in pools]),
        Provenance(**{kind: mean([each[kind] for each in by_pool], ran) for kind in PROVENANCES}),
    )


def _prefix_cache(requests: dict[str, Column]) -> PrefixCache:
    served = np.isfinite(requests["scheduled"])
    hits, prompts = int(requests["cached"][served].sum()), int(requests["prompt"][served].sum())
    return PrefixCache(hit_rate=hits / prompts if prompts else 0.0, hit_tokens=hits, prompt_tokens=prompts)


def _first_uses(engines: Sequence[Engine]) -> FirstUseFigures | None:
    """Kernels that fresh engines compiled; None if no engine is fresh."""
    counted = [engine.first_uses for engine in engines if engine.first_uses is not None]
    if not counted:
        return None
    return FirstUseFigures(kernels=sum(each.count for each in counted), seconds=sum(each.waited for each in counted))
