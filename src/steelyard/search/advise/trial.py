"""The simulator in the loop: how a pool of given sizes would serve expected requests."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from steelyard.balance.autoscale import Scaling
from steelyard.balance.scaling import ExpectedRequests
from steelyard.scenario.slo import RunLimit
from steelyard.sim import FleetSetup, simulate
from steelyard.workload import Workload
from steelyard.workload.columns import plain

_SINCE_ARRIVAL = ("ttft", "e2e", "queue", "attft")  # metrics that time waited before counts in


@dataclass(frozen=True)
class SimulatedTrial:
    """Trials on the fleet itself."""

    setup: FleetSetup
    limits: Sequence[RunLimit]

    def risk(self, expected: ExpectedRequests, sizes: Sequence[tuple[float, int]]) -> float:
        """The worst limit's share of judged requests over it, as a multiple of the share that it allows."""
        judged = np.array([each.judged for each in expected])
        if not judged.any():
            return 0.0
        most = sizes[-1][1]
        scaling = Scaling(1, most, startup=0.0, schedule=tuple(sizes))
        found = simulate(self.setup, self._workload(expected), scaling=scaling, keep=["requests"]).requests
        gc.collect(0)  # it is off during the run that asks; a trial's engines refer to each other
        waited = np.array([each.waited for each in expected])
        finished = found["status"] == "finished"
        worst = 0.0
        for limit in self.limits:
            seconds = found[limit.metric] + (waited if limit.metric in _SINCE_ARRIVAL else 0.0)
            over = (seconds > limit.seconds) | ~finished
            worst = max(worst, float(over[judged].mean()) / limit.may_miss)
        return worst

    def _workload(self, expected: ExpectedRequests) -> Workload:
        longest = self.setup.pools[0].limits.max_model_len
        columns = zip(*((each.at, each.prompt, each.output, each.given) for each in expected), strict=True)
        at, prompt, output, given = (np.array(column) for column in columns)
        prompt = np.minimum(prompt, longest - 1)  # what is drawn may be longer than any request can be
        output = np.minimum(output, longest - prompt)
        return replace(plain(at.astype(np.float64), prompt, output), given=np.minimum(given, prompt - 1))
