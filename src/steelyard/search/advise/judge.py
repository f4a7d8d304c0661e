"""What a fleet would have cost in a part of the trace, and what it would have missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.scenario import SloSpec
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.result import Result
from steelyard.sim.service import verdicts
from steelyard.sim.summary import LimitVerdict

Column = NDArray[Any]
Steps = tuple[tuple[float, int], ...]

WINDOW = 600.0  # seconds of the worst window
_HOUR = 3600.0
_KEPT = ("id", "arrival", "status", "phase", "output", "ttft", "attft", "tpot", "e2e", "queue")


@dataclass(frozen=True)
class ServedTraffic:
    """One run over the trace: its requests, and the replicas that held GPUs, as (second, replicas from then on)."""

    requests: dict[str, Column]
    held: Steps

    @classmethod
    def of(cls, result: Result, replicas: int | None) -> ServedTraffic:
        """From a result with requests, of a fixed number of replicas or of a fleet that scales."""
        requests = {name: result.requests[name] for name in _KEPT}
        if replicas is not None:
            return cls(requests, ((0.0, replicas),))
        assert result.summary.dynamics is not None
        return cls(requests, result.summary.dynamics.pools[0].held)


@dataclass(frozen=True)
class Latencies:
    """Percentiles of the requests that arrived in some hour; None where too many were not served."""

    start: float
    requests: int
    missed: float
    ttft_p95: float | None
    ttft_p99: float | None
    tpot_p95: float | None
    tpot_p99: float | None


@dataclass(frozen=True)
class Judgement:
    """A fleet's figures for the requests that arrived in a part of the trace."""

    start: float
    end: float
    requests: int
    unserved: int
    missed: float  # share of requests over a limit, or not served
    limits: dict[str, LimitVerdict]
    gpu_hours: float
    usd: float
    changes: int  # in the number of replicas that hold GPUs
    worst_start: float  # second at which the worst ten minutes begin
    worst: float  # share missed in them
    hours: tuple[Latencies, ...]

    @property
    def meets(self) -> bool:
        """Whether all limits are met."""
        return all(each.met for each in self.limits.values())


def judge(run: ServedTraffic, slo: SloSpec, start: float, end: float, gpus: int, price: float) -> Judgement:
    """Figures from ``start`` to ``end``; ``gpus`` are those of a replica, and ``price`` is per GPU and hour."""
    arrival = run.requests["arrival"]
    part = _rows(run.requests, (arrival >= start) & (arrival < end))
    over = missed(part, slo)
    hours = gpus * replica_seconds(run.held, start, end) / 3600
    worst_start, worst = _worst(part["arrival"], over, start, end)
    return Judgement(
        start=start,
        end=end,
        requests=len(over),
        unserved=int((part["status"] != "finished").sum()),
        missed=_share(over),
        limits=verdicts(slo, part, TokenGaps.of([])),
        gpu_hours=hours,
        usd=hours * price,
        changes=sum(start < at < end for at, _ in run.held),
        worst_start=worst_start,
        worst=worst,
        hours=tuple(_hours(part, over, start)),
    )


def missed(requests: dict[str, Column], slo: SloSpec) -> Column:
    """Requests over any limit, as their clients see it, and those that were not served."""
    over = requests["status"] != "finished"
    limits = {limit.metric: limit.seconds for limit in slo.on_run()} | slo.per_request()
    for metric, limit in limits.items():
        over = over | (requests[metric] > limit)
    return np.asarray(over)


def replica_seconds(held: Steps, start: float, end: float) -> float:
    """Replicas times seconds between two moments. Before the first entry there are none."""
    ends = [at for at, _ in held[1:]] + [end]
    return sum(
        count * max(0.0, min(until, end) - max(at, start)) for (at, count), until in zip(held, ends, strict=True)
    )


def _rows(requests: dict[str, Column], kept: Column) -> dict[str, Column]:
    return {name: column[kept] for name, column in requests.items()}


def _share(over: Column) -> float:
    return float(over.mean()) if len(over) else 0.0


def _worst(arrival: Column, over: Column, start: float, end: float) -> tuple[float, float]:
    """The ten minutes with the largest share of misses, of those that begin at a minute with a request."""
    found = (start, _share(over))
    if end - start <= WINDOW:
        return found
    order = np.argsort(arrival, kind="stable")
    at, sums = arrival[order], np.concatenate([[0], np.cumsum(over[order])])
    minutes = np.unique(np.floor((at - start) / 60.0))
    begins = np.minimum(start + 60.0 * minutes, end - WINDOW)
    first, last = np.searchsorted(at, begins), np.searchsorted(at, begins + WINDOW)
    shares = (sums[last] - sums[first]) / np.maximum(last - first, 1)
    return float(begins[shares.argmax()]), float(shares.max())


def _hours(requests: dict[str, Column], over: Column, start: float) -> list[Latencies]:
    """Each hour that has requests."""
    found = []
    for hour in np.unique(np.floor((requests["arrival"] - start) / _HOUR)).tolist():
        begin = start + hour * _HOUR
        inside = (requests["arrival"] >= begin) & (requests["arrival"] < begin + _HOUR)
        part = _rows(requests, inside)
        wanted = SloSpec.model_validate({f"{m}_p{p}": 1.0 for m in ("ttft", "tpot") for p in (95, 99)})
        values = {name: each.value for name, each in verdicts(wanted, part, TokenGaps.of([])).items()}
        found.append(Latencies(begin, int(inside.sum()), _share(over[inside]), **values))
    return found


def best(judged: Sequence[Judgement]) -> int:
    """The cheapest that meets all limits; the one with the fewest misses if none does. The first of equals."""
    return min(
        range(len(judged)),
        key=lambda i: (0, judged[i].usd) if judged[i].meets else (1, judged[i].missed),
    )
