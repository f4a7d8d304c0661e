"""What one fleet does under one load, and whether it carries it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

import numpy as np

from steelyard.scenario import Scenario, SloSpec
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.run import draw_workload, simulate
from steelyard.sim.service import goodput_of, verdicts
from steelyard.sim.setup import FleetSetup
from steelyard.sim.steady import steady_window
from steelyard.sim.summary import Unsteady


@dataclass(frozen=True)
class LoadOutcome:
    """The figures of a run that sizing looks at.

    ``values`` are the run's values of its limits, by name; infinite if too few requests were served, or if the run was
    stopped because a limit was out of reach.
    """

    values: Mapping[str, float]
    overloaded: bool  # requests waited longer and longer
    good: float  # share of requests that met every limit of a single request; 1 without any
    output_tokens: int  # of a request, on average

    def to_row(self) -> dict[str, Any]:
        """As JSON has it: infinite values are None."""
        return asdict(self)

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> LoadOutcome:
        """What `to_row` told, from a journal."""
        values = {name: inf if value is None else value for name, value in row["values"].items()}
        return cls(values, row["overloaded"], row["good"], row["output_tokens"])

    def meets(self, slo: SloSpec, good: float | None = None) -> bool:
        """Whether the load is carried: every limit is met and nothing piles up.

        With ``good``, at least this share of requests must be good instead.
        """
        if self.overloaded:
            return False
        return self.good >= good if good is not None else self.meets_limits(slo)

    def meets_limits(self, slo: SloSpec) -> bool:
        """Whether every limit on the run is met."""
        return all(self.values[limit.name] <= limit.seconds for limit in slo.on_run())

    def worst(self, slo: SloSpec) -> str:
        """The limit that is closest to being missed, or most over it."""
        limits = slo.on_run()
        return max(limits, key=lambda limit: self.values[limit.name] / limit.seconds).name if limits else ""


def observe(
    setup: FleetSetup, scenario: Scenario, *, seed: int | None = None, stop: SloSpec | None = None
) -> LoadOutcome:
    """Simulate a prepared fleet under a scenario's workload.

    ``setup`` is that of a scenario with the same fleet. ``stop`` ends the run when one of its limits cannot be met.
    """
    fleet = replace(setup, scenario=scenario)
    workload = draw_workload(fleet, seed)
    result = simulate(fleet, workload, stop=stop, keep=["requests", "steps"])
    requests, logs, slo = result.requests, result.logs, scenario.slo
    output = float(np.mean(requests["output"])) if len(requests["output"]) else 0.0
    window = steady_window(scenario, workload, requests, logs)
    gaps = TokenGaps.of(logs if any(limit.metric == "itl" for limit in slo.on_run()) else [])
    found = {name: inf if each.value is None else each.value for name, each in verdicts(slo, requests, gaps).items()}
    return LoadOutcome(
        values=found,
        overloaded=isinstance(window, Unsteady) and window.arrive_per_s is not None,
        good=goodput_of(slo, requests, 1.0).share or (1.0 if not slo.per_request() else 0.0),
        output_tokens=round(output),
    )
