"""What a workload and its limits ask of a fleet, at each rate: the figures that bounds and estimates use."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from steelyard.scenario import Scenario, SloSpec
from steelyard.sim.setup import host_terms
from steelyard.workload import Workload

_MARKOV = 5.0  # at most a fifth of requests take longer than five times a limit on the mean


@dataclass(frozen=True)
class ServiceDemand:
    """Requests that must meet their limits, in tokens: the shortest ones that make up their share of the run."""

    share: float  # of all requests that must meet the limits
    within: float  # seconds after the last arrival until all of them have ended, or have their first token
    prompt: float  # mean prompt tokens that must be computed
    output: float  # mean output tokens after the first
    shortest: int  # prompt tokens of the shortest request
    tpot: float  # seconds per output token; infinite without a limit
    shown_late: float  # seconds by which a first token may be shown after its step, at most
    shared: bool  # whether requests may share prefixes

    def needs(self, requests: int, span: float) -> float:
        """Requests per second that a fleet must be able to serve, to have served their share of a run in time."""
        return (self.share * requests - 1) / (span + self.within)


def first_token_demand(scenario: Scenario, workload: Workload) -> ServiceDemand | None:
    """What limits on first tokens ask of engines that compute prompts. None if no bound can be given."""
    if not _single(workload):
        return None
    return _least(scenario, workload, _by_first_token(scenario.slo), inf, 0.0)


def whole_demand(scenario: Scenario, workload: Workload) -> ServiceDemand | None:
    """What limits ask of engines that requests end on. None if no bound can be given."""
    if not _single(workload):
        return None
    slo = scenario.slo
    found: list[Promise] = [
        (limit.percentile / 100, limit.seconds, inf)
        for limit in slo.on_run()
        if limit.metric == "e2e" and limit.percentile is not None
    ]
    firsts = _by_first_token(slo)
    longest = int(workload.output.max())
    for limit in slo.on_run():
        if limit.metric == "tpot" and limit.percentile is not None:
            found += [
                (share + limit.percentile / 100 - 1, within + longest * limit.seconds, limit.seconds)
                for share, within, _ in firsts
            ]
    found = [each for each in found if each[0] > 0]
    if not found:
        return None
    host = host_terms(scenario.cost, scenario.base_dir, scenario.source)
    late = host.output + scenario.engine.max_num_seqs * host.output_request
    tightest = min((each for each in found), key=lambda each: (each[2], -each[0]))
    return _least(scenario, workload, [tightest], tightest[2], late)


Promise = tuple[float, float, float]  # share of requests, seconds after the last arrival, seconds per token


def _by_first_token(slo: SloSpec) -> list[Promise]:
    found: list[Promise] = []
    for limit in slo.on_run():
        if limit.metric in ("ttft", "e2e") and limit.percentile is not None:
            found.append((limit.percentile / 100, limit.seconds, inf))
        elif limit.metric in ("ttft", "e2e"):
            found.append((1 - 1 / _MARKOV, _MARKOV * limit.seconds, inf))
    return found


def _least(
    scenario: Scenario, workload: Workload, promises: list[Promise], tpot: float, late: float
) -> ServiceDemand | None:
    if not promises:
        return None
    share, within, _ = max(promises)
    count = max(1, int(share * len(workload)))
    prompt, output = np.sort(workload.prompt)[:count], np.sort(workload.output)[:count]
    shared = workload.content is not None or workload.given is not None
    return ServiceDemand(
        share=share,
        within=within,
        prompt=1.0 if shared else float(prompt.mean()),
        output=float(output.mean()) - 1,
        shortest=int(workload.prompt.min()),
        tpot=tpot,
        shown_late=late,
        shared=shared,
    )


def _single(workload: Workload) -> bool:
    """Whether all requests come by themselves: none waits for another, and none is given up."""
    return bool((workload.after < 0).all()) and workload.rounds is None and bool(np.isinf(workload.abort).all())
