"""Runs that need not go on: a limit that cannot be met any more, whatever becomes of the rest."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor

from steelyard.engine import FINISHED, Engine
from steelyard.engine.log import ENDED
from steelyard.fleet import Desk
from steelyard.scenario import SloSpec
from steelyard.scenario.slo import PercentileLimit
from steelyard.sim.attempts import Part

_METRICS = ("ttft", "tpot", "e2e", "queue")
_ROUNDING = 1e-6  # of a percentile's place among the values


class Hopeless:
    """Counts requests that are over their limits, from what engines have logged so far.

    A limit is hopeless when more requests are over it than its percentile leaves out, of all that there are. Requests
    that will never finish count as over it, too, so nothing that is still to come can help. Where it is not known to
    the microsecond when a client sees a token, the time that favours the limit is taken: a run is never stopped that
    would have met all of them. Limits on ``itl`` and ``attft`` do not stop any.
    """

    def __init__(self, slo: SloSpec, desk: Desk, engines: Sequence[Engine], parts: Sequence[Part]) -> None:
        self._limits = [limit for limit in slo.percentiles() if limit.metric in _METRICS]
        self._desk, self._engines, self._parts = desk, engines, parts
        total = len(desk.workload)
        self._enough = [total - floor(limit.percentile / 100 * (total - 1) - _ROUNDING) for limit in self._limits]
        self._over = [0] * len(self._limits)
        self._read = [0] * len(engines)  # how much of each log has been looked at
        self.found: PercentileLimit | None = None  # the limit that stopped the run

    def __call__(self) -> bool:
        """Whether a limit is hopeless by now."""
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
        self, engine: Engine, part: Part, index: int, first: int, last: int, scheduled: float
    ) -> dict[str, float]:
        """What the figures of a request that has ended here are at least, as far as this engine knows them."""
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
