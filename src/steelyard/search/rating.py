"""Rates kinds of engines for the part of requests that they serve: by bounds and estimates, without simulation."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

from steelyard.search.bounds import EngineBound
from steelyard.search.demand import ServiceDemand
from steelyard.search.estimates import MeanRequest, answers_per_second, prompts_per_second
from steelyard.search.kinds import Rating, Ratings
from steelyard.sim.setup import FleetSetup


@dataclass(frozen=True)
class Rater:
    """Rates engines for what is asked of them."""

    asked: MeanRequest
    tpot: float
    first: ServiceDemand | None
    whole: ServiceDemand | None

    def __call__(self, role: str, setup: FleetSetup) -> Ratings:
        """By part of a request: prefill, serve or decode; a unit may serve or decode."""
        pool = setup.pools[0]
        if role == "prefill":
            bound = inf if self.first is None else EngineBound(pool, "prefill").requests_per_second(self.first)
            return {"prefill": Rating(bound, prompts_per_second(pool, self.asked))}
        parts: tuple[Literal["serve", "decode"], ...] = ("serve", "decode")
        found: dict[str, Rating] = {}
        for part in parts if role == "unit" else [each for each in parts if each == role]:
            bound = inf if self.whole is None else EngineBound(pool, part).requests_per_second(self.whole)
            found[part] = Rating(bound, answers_per_second(pool, self.asked, self.tpot, prompts_too=part == "serve"))
        return found
