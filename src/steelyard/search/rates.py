"""The rates that a search tries: a grid that all candidates share, so that they are compared at the same loads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from steelyard.records import Floats
from steelyard.scenario.search import SearchScenario
from steelyard.search.demand import ServiceDemand
from steelyard.search.loads import Load

RATIO = 1.02  # of neighbouring rates
_LEAST, _MOST = 1e-3, 1e5
_SHORT = 6  # the first simulation of a candidate has so many times fewer requests
_FEWEST = 200


@dataclass(frozen=True)
class RateGrid:
    """Rates, and how many requests a simulation has at each."""

    load: Load
    seconds: float
    fewest: int

    @classmethod
    def of(cls, scenario: SearchScenario, load: Load) -> RateGrid:
        """The grid of a search."""
        return cls(load, scenario.search.seconds, scenario.search.requests)

    @cached_property
    def rates(self) -> Floats:
        """All rates, rising."""
        return np.asarray(_LEAST * RATIO ** np.arange(int(np.log(_MOST / _LEAST) / np.log(RATIO)) + 1))

    def at_most(self, rate: float) -> int:
        """The place of the highest rate that is not above one; -1 if there is none."""
        return int(np.searchsorted(self.rates, rate * (1 + 1e-9), side="right")) - 1

    def at_least(self, rate: float) -> int:
        """The place of the lowest rate that is not below one."""
        return min(int(np.searchsorted(self.rates, rate * (1 - 1e-9))), len(self.rates) - 1)

    def above(self, rate: float) -> int:
        """The place of the lowest rate above one."""
        return self.at_most(rate) + 1

    def requests(self, place: int, short: bool = False) -> int:
        """Requests of a simulation at a rate."""
        whole = max(self.fewest, round(float(self.rates[place]) * self.seconds))
        return max(min(_FEWEST, whole), whole // _SHORT) if short else whole

    def needs(self, demand: ServiceDemand | None) -> Floats:
        """Requests per second that must be served at each rate, at least; rising.

        The span of arrivals is that of the requests as they are drawn, which keep their order and proportions.
        """
        if demand is None:
            return np.zeros(len(self.rates))
        most = self.requests(len(self.rates) - 1)
        arrivals = self.load.unit_arrivals(min(most, 200_000))
        found = np.zeros(len(self.rates))
        for place, rate in enumerate(self.rates.tolist()):
            count = self.requests(place)
            unit = arrivals[count - 1] if count <= len(arrivals) else arrivals[-1] * count / len(arrivals) * 1.02
            found[place] = demand.needs(count, unit / rate)
        return np.asarray(np.minimum.accumulate(found[::-1])[::-1])
