"""Data of a run's charts on the page: distributions, and load over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.records.columns import Floats
from steelyard.records.jsontext import short
from steelyard.sim.plots.axis import TimeAxis, time_axis
from steelyard.sim.plots.binned import PARTS, tokens_over_time
from steelyard.sim.plots.load import PoolLoad, load_of

if TYPE_CHECKING:
    from steelyard.sim import Result, Summary

# Finer steps in the last per cent, which has p99 and p99.9.
_SHARES = np.concatenate([np.linspace(0, 0.99, 250), np.linspace(0.99, 1, 51)[1:]])
_METRICS = ("ttft", "tpot", "e2e")


def figure_data(result: Result) -> dict[str, Any]:
    """Everything that the page draws of a run, ready for JSON."""
    axis, steady = time_axis(result), result.summary.steady
    return {
        "quantiles": short(_SHARES),
        "cdfs": {name: short(_quantiles(result, name)) for name in _METRICS},
        "limits": _limits(result.summary),
        "time": None if axis is None else [axis.start, axis.end, axis.bins],
        "series": {} if axis is None else {name: short(values) for name, values in _over_time(result, axis).items()},
        "steady": None if steady is None else [steady.start_s, steady.end_s],
    }


def _quantiles(result: Result, metric: str) -> Floats:
    """The metric's value at each share of finished requests; empty if none has one."""
    values = result.requests[metric][result.requests["status"] == "finished"].astype(np.float64)
    values = values[np.isfinite(values)]
    return np.asarray(np.quantile(values, _SHARES)) if len(values) else values


def _limits(summary: Summary) -> dict[str, list[tuple[str, float]]]:
    """The SLO's limits in seconds by metric."""
    drawn: dict[str, list[tuple[str, float]]] = {name: [] for name in _METRICS}
    for name, verdict in summary.slo.items():
        metric, _, level = name.partition("_")
        if metric in drawn:
            drawn[metric].append((level, verdict.limit))
    return drawn


def _over_time(result: Result, axis: TimeAxis) -> dict[str, Floats]:
    """Means of each interval, of the whole fleet."""
    found: dict[str, Floats] = {}
    tokens = tokens_over_time(result.requests, axis.finer(PARTS))
    if tokens is not None:
        found["input"], found["output"] = (each.mean for each in tokens)
    pools = [pool for pool in result.summary.pools if pool.replicas]
    if not pools:
        return found
    load = PoolLoad.together([load_of(result, axis, pool) for pool in pools])
    if load.steps:
        found |= {"waiting": load.waiting().mean, "running": load.running().mean, "batch": load.batch().mean}
        if load.has_blocks:
            found |= {"kv": load.kv().mean, "kv_peak": load.peak}
    return found
