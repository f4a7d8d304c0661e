"""Rates kinds of engines for the part of requests that they serve: by bounds, estimates, and small simulations.

How long first tokens take follows from queues at prefill engines, which no simple formula tells. So a few prefill
engines of a kind are simulated with prompts only, at each level of the limits on first tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from steelyard.scenario import SloSpec
from steelyard.search.bounds import EngineBound
from steelyard.search.capacity import largest_rate
from steelyard.search.demand import ServiceDemand
from steelyard.search.estimates import MeanRequest, answers_per_second, prompts_per_second
from steelyard.search.kinds import Rating, Ratings
from steelyard.search.loads import Load
from steelyard.sim.setup import FleetSetup, set_up

_TOGETHER = 4  # prefill engines: more share their queues better, which matters less and less
_FEWEST = 200  # requests of such a simulation
_BUSY = 0.8  # share of an engine's estimate at which the largest rate is first looked for


@dataclass(frozen=True)
class Rater:
    """Rates engines for what is asked of them."""

    asked: MeanRequest
    tpot: float
    first: ServiceDemand | None
    whole: ServiceDemand | None
    levels: tuple[SloSpec, ...]
    seconds: float  # of arrivals of a whole simulation

    def __call__(self, role: str, setup: FleetSetup) -> Ratings:
        """By part of a request: prefill, serve or decode; a unit may serve or decode."""
        pool = setup.pools[0]
        if role == "prefill":
            bound = inf if self.first is None else EngineBound(pool, "prefill").requests_per_second(self.first)
            estimate = prompts_per_second(pool, self.asked)
            return {"prefill": Rating(bound, estimate, self._first_tokens(setup, estimate))}
        parts: tuple[Literal["serve", "decode"], ...] = ("serve", "decode")
        found: dict[str, Rating] = {}
        for part in parts if role == "unit" else [each for each in parts if each == role]:
            bound = inf if self.whole is None else EngineBound(pool, part).requests_per_second(self.whole)
            estimate = answers_per_second(pool, self.asked, self.tpot, prompts_too=part == "serve")
            found[part] = Rating(bound, estimate, (inf,) * len(self.levels))
        return found

    def _first_tokens(self, setup: FleetSetup, estimate: float) -> tuple[float, ...]:
        """Prompts per second of one of several engines, by level."""
        return tuple(self._prompts(setup, estimate, slo) for slo in self._only_first())

    def _only_first(self) -> list[SloSpec]:
        return [
            SloSpec(**{limit.name: limit.seconds for limit in slo.on_run() if limit.metric == "ttft"})
            for slo in self.levels
        ]

    def _prompts(self, setup: FleetSetup, estimate: float, slo: SloSpec) -> float:
        if not slo.on_run() or estimate <= 0:
            return inf
        scenario = setup.scenario
        mix = scenario.workload.model_dump(exclude_unset=True)
        mix["mix"] = [{**each, "output": 1} if each.get("output") is not None else each for each in mix["mix"]]
        pools = [{**pool.model_dump(exclude_unset=True), "replicas": _TOGETHER} for pool in scenario.fleet.pools]
        fleet = {**scenario.fleet.model_dump(exclude_unset=True), "pools": pools, "router": "least-outstanding"}
        alone = scenario.replace(workload=mix, fleet=fleet, slo=slo)
        near = _BUSY * _TOGETHER * estimate
        requests = max(_FEWEST, round(near * self.seconds / 2))
        return largest_rate(set_up(alone), Load(alone), requests=requests, near=near).rate / _TOGETHER
