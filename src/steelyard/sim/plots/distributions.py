"""Charts of distributions: latencies, lengths, and latency by time of arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from steelyard.plot import Axis, Chart, Marks, Threshold
from steelyard.records.columns import Column, Floats
from steelyard.sim.plots.axis import TimeAxis
from steelyard.sim.summary import Intervals, Summary
from steelyard.words import count, seconds

if TYPE_CHECKING:
    from steelyard.sim.result import Result

TITLES = {
    "ttft": "Time to first token",
    "tpot": "Time per output token",
    "itl": "Time between tokens",
    "e2e": "End to end",
}
DOTS, DOT_BINS, HISTOGRAM_BARS = 600, 60, 40
# Finer steps in the last per cent, which has p99 and p99.9.
_SHARES = np.concatenate([np.linspace(0, 0.99, 250), np.linspace(0.99, 1, 51)[1:]])
_MARKS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_STATED = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}  # percentiles that intervals are known of
_BAND_POINTS = 120
_WIDE = 1e6  # an axis with equal ratios begins at the largest value divided by this, or later


def latency(result: Result, metric: str) -> Chart:
    """The share of requests (of gaps, for ITL) within each time, with the run's limits and intervals."""
    values, title = _quantiles(result, metric), TITLES[metric]
    up = Axis("share of gaps" if metric == "itl" else "share of requests", "share", 0.0, 1.0)
    if not len(values):
        return Chart(metric, title, Axis(title, "s"), up, ())
    band = _band(result.summary.intervals, metric, values)
    ends = [float(values[-1]), *(float(each.x[-1]) for each in band)]
    high = max(ends) or 1e-6
    low = max(float(values[values > 0][0]) if (values > 0).any() else high / 2, high / _WIDE)
    levels = result.summary.latencies[metric].levels
    known = {name: (levels[name], share) for name, share in _MARKS.items() if levels[name] is not None}
    marks = [
        *band,
        Marks(
            "line",
            values,
            _SHARES,
            "",
            "1",
            fill=True,
            said=", ".join(f"{n} {seconds(v)}" for n, (v, _) in known.items()),
        ),
        Marks("dots", *np.array(list(known.values()), dtype=np.float64).reshape(-1, 2).T),
    ]
    other = Axis(title, "s", low / 1.1, high * 1.1, log=True)
    return Chart(
        metric,
        title,
        Axis(title, "s", 0.0, high * 1.04),
        up,
        tuple(marks),
        _limits(result.summary, metric),
        other=other,
    )


def _quantiles(result: Result, metric: str) -> Floats:
    """The metric's value at each share; empty if no request has one, or if a folder does not hold it."""
    if metric == "itl":
        known = result.has("gaps") and len(result.gaps.parts) > 0
        return np.array(result.gaps.at(_SHARES * result.gaps.total)) if known else np.empty(0)
    values = result.requests[metric][result.requests["status"] == "finished"].astype(np.float64)
    values = values[np.isfinite(values)]
    return np.asarray(np.quantile(values, _SHARES)) if len(values) else values


def _band(intervals: Intervals | None, metric: str, values: Floats) -> list[Marks]:
    """Where the curve may lie between the lowest and the highest percentile that has an interval.

    Between two of these the ends are to the curve as they are there, in a proportion that changes evenly: so the band
    follows the curve round its bends.
    """
    found = (
        {}
        if intervals is None
        else {q: intervals.bounds[f"{metric}.{n}"] for n, q in _STATED.items() if f"{metric}.{n}" in intervals.bounds}
    )
    if intervals is None or len(found) < 2:
        return []
    known, bounds = np.array(list(found)), np.array(list(found.values())).T
    between = (known[0] < _SHARES) & (known[-1] > _SHARES)
    shares = np.unique(np.concatenate([known, _SHARES[between][:: max(1, int(between.sum()) // _BAND_POINTS)]]))
    lows, highs = (_along(np.maximum.accumulate(each), known, shares, values) for each in bounds)
    at = np.unique(np.concatenate([lows, highs]))
    top, below = np.interp(at, lows, shares), np.interp(at, highs, shares)
    return [Marks("band", at, top, f"{intervals.share:.0%} sure", "3", low=below)]


def _along(ends: Floats, known: Floats, shares: Floats, values: Floats) -> Floats:
    """Ends of intervals at all shares, from those at a few: never beyond their neighbours."""
    levels = np.interp(known, _SHARES, values)
    ratios = np.divide(ends, levels, out=np.ones_like(levels), where=levels > 0)
    found = np.interp(shares, _SHARES, values) * np.interp(shares, known, ratios)
    before = np.clip(np.searchsorted(known, shares, side="right") - 1, 0, len(known) - 2)
    return np.maximum.accumulate(np.clip(found, ends[before], ends[before + 1]))


def _limits(summary: Summary, metric: str) -> tuple[Threshold, ...]:
    """The SLO's limits on the metric."""
    found = ((name.partition("_"), each.limit) for name, each in summary.slo.items())
    return tuple(Threshold(f"limit {level}".strip(), at) for (own, _, level), at in found if own == metric)


def by_arrival(requests: dict[str, Column]) -> Chart:
    """A sample of the requests as dots, and exact medians and p95 over intervals of arrival time."""
    known = np.flatnonzero((requests["status"] == "finished") & np.isfinite(requests["ttft"]))
    title = "Time to first token by arrival"
    if not len(known):
        return Chart("arrivals", title, Axis("arrival", "clock"), Axis("time to first token", "s"), ())
    order = known[np.argsort(requests["arrival"][known], kind="stable")]
    arrival, ttft = requests["arrival"][order], requests["ttft"][order]
    sample = np.unique(np.linspace(0, len(order) - 1, min(DOTS, len(order))).round().astype(np.int64))
    middles, medians, tails = _levels(arrival, ttft)
    told = (
        f"{count(len(sample))} of {count(len(order))} requests"
        if len(sample) < len(order)
        else f"{count(len(order))} requests"
    )
    marks = [Marks("dots", arrival[sample], ttft[sample], "", "1", said=f"dots: {told}")]
    if len(middles):
        marks += [Marks("line", middles, medians, "median", "1"), Marks("line", middles, tails, "p95", "2")]
    least, most = float(ttft.min()), float(ttft.max())
    log = least > 0 and most > 50 * least
    up = Axis("time to first token", "s", least / 1.2 if log else 0.0, log=log)
    pad = (float(arrival[-1]) - float(arrival[0])) * 0.01 or 0.5
    along = Axis("arrival", "clock", float(arrival[0]) - pad, float(arrival[-1]) + pad)
    return Chart("arrivals", title, along, up, tuple(marks))


def _levels(arrival: Floats, values: Floats) -> tuple[Floats, Floats, Floats]:
    """Middles of intervals with arrivals, and the median and p95 of each."""
    axis = TimeAxis(float(arrival[0]), float(arrival[-1]), DOT_BINS)
    if axis.end <= axis.start:
        return np.empty(0), np.empty(0), np.empty(0)
    bounds = np.searchsorted(axis.bin_of(arrival), np.arange(DOT_BINS + 1))
    filled = np.flatnonzero(np.diff(bounds))
    levels = [np.quantile(values[bounds[i] : bounds[i + 1]], (0.5, 0.95)) for i in filled.tolist()]
    middles = np.asarray(axis.start + (filled + 0.5) * axis.width, dtype=np.float64)
    return middles, *np.array(levels, dtype=np.float64).T


def lengths(requests: dict[str, Column], name: str, title: str) -> Chart:
    """How many requests are how long; bars get wider where lengths differ widely."""
    values = requests[name]
    up = Axis("requests", "whole", low=0.0)
    if not len(values):
        return Chart(name, title, Axis("tokens", "whole"), up, ())
    low, high = int(values.min()), int(values.max()) + 1
    log = high > 50 * low and low > 0
    edges = np.geomspace(low, high, HISTOGRAM_BARS + 1) if log else np.linspace(low, high, HISTOGRAM_BARS + 1)
    whole = np.unique(edges.round().astype(np.int64))
    many, _ = np.histogram(values, bins=whole)
    told = f"{count(low)} to {count(high - 1)} tokens" if high - 1 > low else f"all {count(low)} tokens"
    start, end = whole[:-1].astype(np.float64), whole[1:].astype(np.float64)
    pad = 0.0 if len(many) > 1 else max(2.0, 0.2 * low)
    first, last = (low / 1.05, high * 1.05) if log else (max(0.0, low - pad), high + pad)
    bars = Marks("bars", start, many.astype(np.float64), "", "1", ends=end, said=told)
    return Chart(name, title, Axis("tokens", "whole", first, last, log=log), up, (bars,))
