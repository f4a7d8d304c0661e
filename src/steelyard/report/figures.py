"""Data of the page's figures, small for a run of any size.

Means over time are exact integrals over each bin, not samples; distributions are exact quantiles.
Only the dots of the scatter are a sample, evenly spaced in order of arrival.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.records.columns import in_parts
from steelyard.records.jsontext import short
from steelyard.report.axis import TimeAxis, time_axis
from steelyard.report.changes import serving_over_time

if TYPE_CHECKING:
    from steelyard.sim import Result, Summary
    from steelyard.sim.summary import PoolFigures

Columns = Mapping[str, np.ndarray]

DOTS = 600
DOT_BINS = 60
HISTOGRAM_BARS = 40
MOST_POOLS = 6
_CHUNK = 1 << 20

# Finer steps in the last per cent, which has p99 and p99.9.
_QUANTILES = np.concatenate([np.linspace(0, 0.99, 250), np.linspace(0.99, 1, 51)[1:]])
_CDF_METRICS = ("ttft", "tpot", "itl", "e2e")
_MARKS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def figure_data(result: Result) -> dict[str, Any]:
    """Everything the page draws, ready for JSON."""
    axis, steady = time_axis(result), result.summary.steady
    return {
        "replicas": result.summary.replicas,
        "quantiles": short(_QUANTILES),
        "cdfs": {name: short(_cdf(result, name)) for name in _CDF_METRICS},
        "marks": {name: _marks(result.summary, name) for name in _CDF_METRICS},
        "limits": _limits(result.summary),
        "time": None if axis is None else [axis.start, axis.end, axis.bins],
        "series": {} if axis is None else _over_time(result, axis),
        "steady": None if steady is None else [steady.start_s, steady.end_s],
        "pools": [] if axis is None else _by_pool(result, axis),
        "serving": [] if axis is None else serving_over_time(result, axis),
        "arrivals": _ttft_by_arrival(result.requests),
        "prompt": _histogram(result.requests["prompt"]),
        "output": _histogram(result.requests["output"]),
    }


def integrals(axis: TimeAxis, start: np.ndarray, end: np.ndarray, *values: np.ndarray) -> np.ndarray:
    """The exact integral of each value over each bin, where row i holds its value from start[i] to end[i]."""
    low, high = axis.bin_of(start), axis.bin_of(end)
    inside, across = np.flatnonzero(low == high), np.flatnonzero(low != high)
    within = (end - start)[inside]
    first, last = low[across], high[across]
    head = axis.start + (first + 1) * axis.width - start[across]
    tail = end[across] - (axis.start + last * axis.width)
    totals = np.empty((len(values), axis.bins))
    for total, value in zip(totals, values, strict=True):
        spanning = value[across]
        level = _per_bin(axis.bins + 1, first + 1, spanning) - _per_bin(axis.bins + 1, last, spanning)
        total[:] = np.cumsum(level)[: axis.bins] * axis.width
        total += _per_bin(axis.bins, low[inside], value[inside] * within)
        total += _per_bin(axis.bins, first, spanning * head) + _per_bin(axis.bins, last, spanning * tail)
    return totals


def _per_bin(bins: int, where: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.bincount(where, weights=weights, minlength=bins).astype(np.float64, copy=False)


def _over_time(result: Result, axis: TimeAxis) -> dict[str, list[float | None]]:
    series = {**_tokens_over_time(result.requests, axis), **_load_over_time(result, axis)}
    return {name: short(_without_residue(values)) for name, values in series.items()}


def _without_residue(values: np.ndarray) -> np.ndarray:
    """Set rounding errors near zero to zero."""
    return np.where(np.abs(values) < 1e-9 * np.abs(values).max(), 0.0, values)


def _tokens_over_time(requests: Columns, axis: TimeAxis) -> dict[str, np.ndarray]:
    """Tokens per second. Those of a finished request are spread evenly over its prefill and its decode."""
    done = requests["status"] == "finished"
    if not done.any():
        return {}
    scheduled, first, finish = (requests[name][done] for name in ("scheduled", "first_token", "finish"))
    prompt, output = requests["prompt"][done], requests["output"][done]
    onset = np.bincount(axis.bin_of(first), minlength=axis.bins)
    return {
        "input": _spread(axis, scheduled, first, prompt) / axis.width,
        "output": (onset + _spread(axis, first, finish, output - 1)) / axis.width,
    }


def _spread(axis: TimeAxis, start: np.ndarray, end: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """Amounts per bin, each spread evenly over its interval. An interval without length falls in one bin."""
    instant = end <= start
    total = _per_bin(axis.bins, axis.bin_of(end[instant]), amount[instant])
    start, end, amount = start[~instant], end[~instant], amount[~instant]
    total += integrals(axis, start, end, amount / (end - start))[0]
    return total


def figured_pools(summary: Summary) -> list[PoolFigures]:
    """Pools with figures of their own: those that have engines, where there are several."""
    pools = [pool for pool in summary.pools if pool.replicas]
    return pools[:MOST_POOLS] if len(pools) > 1 else []


def _by_pool(result: Result, axis: TimeAxis) -> list[dict[str, Any]]:
    """Queue, batch and cache of each pool by itself."""
    found = []
    for pool in figured_pools(result.summary):
        load = _load_over_time(result, axis, range(pool.first_replica, pool.first_replica + pool.replicas))
        series = {name: short(_without_residue(values)) for name, values in load.items()}
        found.append({"replicas": pool.replicas, "series": series})
    return found


def _load_over_time(result: Result, axis: TimeAxis, only: range | None = None) -> dict[str, np.ndarray]:
    """Queue and batch from the steps; between steps a replica is idle, with nothing waiting or held.

    ``only`` are the replicas to include.
    """
    blocks = _blocks_by_replica(result.summary)
    sums, peak, count = np.zeros((5, axis.bins)), np.zeros(axis.bins), 0
    for steps in in_parts(result.step_tables(only), _CHUNK):
        start, end = steps["start"], steps["end"]
        count += len(start)
        members = steps["n_decode"] + steps["prefill_requests"]
        room = blocks[steps["replica"]]
        used = 1 - np.divide(steps["free_blocks"], room, out=np.ones(len(room)), where=room > 0)
        busy = np.ones(len(start))
        sums += integrals(axis, start, end, busy, steps["waiting"], steps["running"], members, used)
        _raise_peaks(peak, axis, start, end, used)
    if not count:
        return {}
    busy_seconds, waiting, running, batch, held = sums
    load = {
        "waiting": waiting / axis.width,
        "running": running / axis.width,
        "batch": np.divide(batch, busy_seconds, out=np.zeros(axis.bins), where=busy_seconds > 0),
    }
    if blocks.any():
        load |= {"kv": held / (axis.width * (len(blocks) if only is None else len(only))), "kv_peak": peak}
    return load


def _blocks_by_replica(summary: Summary) -> np.ndarray:
    """How many KV blocks each replica has: pools differ."""
    return np.concatenate([np.full(pool.replicas, pool.kv.blocks_per_replica, dtype=float) for pool in summary.pools])


def _raise_peaks(peak: np.ndarray, axis: TimeAxis, start: np.ndarray, end: np.ndarray, value: np.ndarray) -> None:
    """Lift each bin's peak to the largest value held anywhere in it."""
    low, high = axis.bin_of(start), axis.bin_of(end)
    spans = high - low + 1
    owner = np.repeat(np.arange(len(start)), spans)
    where = low[owner] + np.arange(len(owner)) - np.repeat(np.cumsum(spans) - spans, spans)
    np.maximum.at(peak, where, value[owner])


def _cdf(result: Result, metric: str) -> np.ndarray:
    """The metric's value at each quantile; empty if no request has one."""
    if metric == "itl":
        return np.array(result.gaps.at(_QUANTILES * result.gaps.total)) if result.gaps.parts else np.empty(0)
    values = result.requests[metric][result.requests["status"] == "finished"]
    values = values[np.isfinite(values)]
    return np.asarray(np.quantile(values, _QUANTILES)) if len(values) else values


def _marks(summary: Summary, metric: str) -> list[tuple[str, float | None, float]]:
    """The summary's own percentiles, to be marked on the curve."""
    return [(name, summary.latencies[metric].levels[name], share) for name, share in _MARKS.items()]


def _limits(summary: Summary) -> dict[str, list[tuple[str, float]]]:
    """The SLO's limits in seconds by metric, to be drawn across its distribution."""
    drawn: dict[str, list[tuple[str, float]]] = {name: [] for name in _CDF_METRICS}
    for name, verdict in summary.slo.items():
        metric, _, percentile = name.partition("_")
        if metric in drawn:
            drawn[metric].append((percentile, verdict.limit))
    return drawn


def _ttft_by_arrival(requests: Columns) -> dict[str, Any]:
    """A sample of the requests as dots, and exact medians and p95 over bins of arrival time."""
    known = np.flatnonzero((requests["status"] == "finished") & np.isfinite(requests["ttft"]))
    if not len(known):
        return {"at": [], "ttft": [], "mid": [], "p50": [], "p95": [], "total": 0}
    order = known[np.argsort(requests["arrival"][known], kind="stable")]
    arrival, ttft = requests["arrival"][order], requests["ttft"][order]
    sample = np.unique(np.linspace(0, len(order) - 1, min(DOTS, len(order))).round().astype(np.int64))
    axis = TimeAxis(float(arrival[0]), float(arrival[-1]), DOT_BINS)
    middles, medians, tails = [], [], []
    if axis.end > axis.start:
        where = axis.bin_of(arrival)
        bounds = np.searchsorted(where, np.arange(DOT_BINS + 1))
        for index in np.flatnonzero(np.diff(bounds)).tolist():
            median, tail = np.quantile(ttft[bounds[index] : bounds[index + 1]], (0.5, 0.95))
            middles.append(axis.start + (index + 0.5) * axis.width)
            medians.append(median)
            tails.append(tail)
    return {
        "at": short(arrival[sample], 6),
        "ttft": short(ttft[sample]),
        "mid": short(np.array(middles), 6),
        "p50": short(np.array(medians)),
        "p95": short(np.array(tails)),
        "total": len(order),
    }


def _histogram(lengths: np.ndarray) -> dict[str, list[int]]:
    """Counts of token lengths between whole-number edges, growing edges where lengths differ widely."""
    if not len(lengths):
        return {"edges": [], "counts": []}
    low, high = int(lengths.min()), int(lengths.max()) + 1
    if high > 50 * low:
        edges = np.geomspace(low, high, HISTOGRAM_BARS + 1)
    else:
        edges = np.linspace(low, high, HISTOGRAM_BARS + 1)
    whole = np.unique(edges.round().astype(np.int64))
    counts, _ = np.histogram(lengths, bins=whole)
    return {"edges": whole.tolist(), "counts": counts.tolist()}
