"""Early stopping: a limit that cannot be met any more, whatever the remaining requests do."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from steelyard.engine import FINISHED, Engine
from steelyard.engine.log import ENDED
from steelyard.fleet import Desk
from steelyard.scenario import SloSpec
from steelyard.scenario.slo import RunLimit
from steelyard.sim.attempts import EnginePart

_METRICS = ("ttft", "tpot", "e2e", "queue")
_ROUNDING = 1e-6  # tolerance on the rank of a percentile


class Hopeless:
    """Counts requests over their limits, from the engines' logs so far.

    A limit is hopeless when more requests are over it than its percentile allows, of all requests of the run. Requests
    that will never finish count as over it, too, so later requests cannot help. Times that a client sees are bounded in
    favour of the limit, so a run that would meet all limits is never stopped. Limits on ``itl`` and ``attft``, and on
    means, do not stop runs.
    """

    def __init__(self, slo: SloSpec, desk: Desk, engines: Sequence[Engine], parts: Sequence[EnginePart]) -> None:
        self._limits = [limit for limit in slo.on_run() if limit.metric in _METRICS and limit.percentile is not None]
        self._desk, self._engines, self._parts = desk, engines, parts
        total = len(desk.workload)
        self._enough = [
            total - floor((limit.percentile or 0) / 100 * (total - 1) - _ROUNDING) for limit in self._limits
        ]
        self._over = [0] * len(self._limits)
        self._read = [0] * len(engines)  # rows of each log that have been counted
        self.found: RunLimit | None = None  # the limit that stopped the run

    def __call__(self) -> bool:
        """Whether a limit is hopeless."""
        for k, engine in enumerate(self._engines):
            self._look(k, engine)
        for limit, over, enough in zip(self._limits, self._over, self._enough, strict=True):
            if over >= enough:
                self.found = limit
                return True
        return False

    def _look(self, k: int, engine: Engine) -> None:
        rows, part = engine.log.requests, self._parts[k]
        for row in range(self._read[k], len(rows), ENDED):
            index, status, first, last = (int(value) for value in rows[row : row + 4])
            if status == FINISHED and first >= 0:
                bounds = self._least(engine, part, index, first, last, rows[row + ENDED - 1])
                for i, limit in enumerate(self._limits):
                    self._over[i] += bounds.get(limit.metric, 0.0) > limit.seconds
        self._read[k] = len(rows)

    def _least(
        self, engine: Engine, part: EnginePart, index: int, first: int, last: int, scheduled: float
    ) -> dict[str, float]:
        """Lower bounds on the latencies of a request that has ended on this engine."""
        ends, arrival, found = engine.log.ends, float(self._desk.arrival[index]), dict[str, float]()
        if part.begins:
            found["queue"] = scheduled - arrival
        if part.first:
            found["ttft"] = ends[first] - arrival
        if part.ends:
            found["e2e"] = ends[last] - arrival
        more = int(self._desk.output[index]) - 1
        if part.first and part.ends and more > 0:
            host = self._desk.host
            shown = ends[first] + host.output + engine.limits.max_num_seqs * host.output_request  # at the latest
            found["tpot"] = (ends[last] - shown) / more
        return found
