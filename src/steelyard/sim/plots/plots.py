"""`Result.plot`: every chart of a run by name."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from steelyard.errors import UserError
from steelyard.plot import BarChart, Chart, Panels
from steelyard.sim.plots import changes, distributions, over_time, shares
from steelyard.sim.plots.axis import TimeAxis, time_axis
from steelyard.sim.plots.binned import PARTS, tokens_over_time
from steelyard.sim.plots.load import PoolLoad, load_of
from steelyard.sim.summary import PoolFigures

if TYPE_CHECKING:
    from steelyard.sim.result import Result


class ResultPlots:
    """Charts of a result. Each shows itself in a notebook and has ``save(path)``, to .svg or .csv."""

    def __init__(self, result: Result) -> None:
        self._result = result

    def ttft(self) -> Chart:
        """The distribution of times to the first token."""
        return distributions.latency(self._result, "ttft")

    def tpot(self) -> Chart:
        """The distribution of times per output token."""
        return distributions.latency(self._result, "tpot")

    def itl(self) -> Chart:
        """The distribution of times between two tokens of a request. A loaded result does not have it."""
        return distributions.latency(self._result, "itl")

    def e2e(self) -> Chart:
        """The distribution of times from submission to the last token."""
        return distributions.latency(self._result, "e2e")

    def latency(self) -> Panels:
        """All four distributions."""
        return Panels((self.ttft(), self.tpot(), self.itl(), self.e2e()))

    def throughput(self) -> Chart:
        """Input and output tokens per second over time."""
        tokens = None if self.axis is None else tokens_over_time(self._result.requests, self.axis.finer(PARTS))
        return over_time.throughput(tokens, self.axis, self._result.summary.steady)

    def requests(self, pool: str | None = None) -> Chart:
        """Running and waiting requests over time, of a pool or of the whole fleet."""
        return over_time.requests(*self._of(pool))

    def batch(self, pool: str | None = None) -> Chart:
        """Requests per step over time."""
        return over_time.batch(*self._of(pool))

    def kv(self, pool: str | None = None) -> Chart:
        """KV cache in use over time."""
        return over_time.kv(*self._of(pool))

    def links(self) -> Chart:
        """Links between pools over time. A loaded result does not have it."""
        spans = self._result.links if self._result.has("links") else {}
        return over_time.links(spans, self.axis, self._result.summary.steady)

    def timeline(self, pool: str | None = None) -> Panels:
        """Throughput, requests, batches and KV cache over time; of a pool, the last three."""
        load = (self.requests(pool), self.batch(pool), self.kv(pool))
        return Panels(load if pool else (self.throughput(), *load))

    def serving(self) -> tuple[Chart, ...]:
        """Replicas over time, of each pool with changing replicas or faults."""
        return () if self.axis is None else tuple(changes.serving(self._result, self.axis))

    def arrivals(self) -> Chart:
        """Times to the first token by time of arrival."""
        return distributions.by_arrival(self._result.requests)

    def prompt_lengths(self) -> Chart:
        """How long prompts are."""
        return distributions.lengths(self._result.requests, "prompt", "Prompt tokens")

    def output_lengths(self) -> Chart:
        """How long answers are."""
        return distributions.lengths(self._result.requests, "output", "Output tokens")

    def step_time(self) -> Panels:
        """Where the time of each pool's steps goes."""
        return Panels(shares.step_time(self._result.summary))

    def provenance(self) -> BarChart:
        """Where the step times come from."""
        return shares.provenance(self._result.summary)

    def tiers(self) -> BarChart:
        """Where prompt tokens were found, in a fleet with memory below the GPUs'."""
        return shares.tiers(self._result.summary)

    @cached_property
    def axis(self) -> TimeAxis | None:
        """The time axis of all charts; None if nothing happened."""
        return time_axis(self._result)

    def pools(self) -> list[PoolFigures]:
        """Pools with charts of their own: those that have engines, where there are several."""
        pools = [pool for pool in self._result.summary.pools if pool.replicas]
        return pools if len(pools) > 1 else []

    @cached_property
    def _loads(self) -> dict[str, PoolLoad]:
        """By pool."""
        if self.axis is None:
            return {}
        return {p.name: load_of(self._result, self.axis, p) for p in self._result.summary.pools if p.replicas}

    def _of(self, pool: str | None) -> tuple[PoolLoad | None, TimeAxis | None, over_time.Window, str, str]:
        """The load of a pool or of all, and what its chart is called."""
        steady = self._result.summary.steady
        if pool is None:
            return PoolLoad.together(list(self._loads.values())) if self._loads else None, self.axis, steady, "", ""
        names = [each.name for each in self._result.summary.pools if each.replicas]
        if pool not in names:
            raise UserError(f"plot: no pool is called {pool!r}; choose from {', '.join(names)}")
        return self._loads.get(pool), self.axis, steady, pool, f"-{names.index(pool)}"
