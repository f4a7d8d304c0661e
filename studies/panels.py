"""Kinds of panels: each is a function from an example's runs to one panel of its figure.

Functions that take settings return such a function, so that a figure is a list of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from steelyard import Result
from steelyard.sim.intervals import figures
from steelyard.sim.plots.axis import time_axis
from steelyard.sim.plots.binned import PARTS, integrals, tokens_over_time
from studies.runs import Runs
from studies.svg import Bars, Curve, Panel

Drawing = Callable[[Runs], Panel | Bars]
Floats = NDArray[np.float64]

_QUANTILES = np.linspace(0, 0.99, 100)  # the last hundredth would squeeze all the others
_TIME = "seconds since the start"
_METRICS = {"ttft": "TTFT", "attft": "aTTFT", "tpot": "TPOT", "e2e": "end to end"}


def tokens(runs: Runs) -> Panel:
    """Tokens a second, in and out."""
    result = runs()
    axis = time_axis(result)
    assert axis is not None
    over_time = tokens_over_time(result.requests, axis.finer(PARTS))
    assert over_time is not None
    x = _middles(result)
    curves = [Curve(name, x, each.mean) for name, each in zip(("prompts", "answers"), over_time, strict=True)]
    return Panel("Tokens per second", _TIME, "tokens/s", curves)


def queues(runs: Runs) -> Panel:
    """Requests that run and wait, pool by pool."""
    result = runs()
    pools = [pool for pool in result.summary.pools if pool.replicas]
    curves = []
    for pool in pools:
        name = f"{pool.name}: " if len(pools) > 1 else ""
        running, waiting = _load(result, range(pool.first_replica, pool.first_replica + pool.replicas))
        curves += [
            Curve(f"{name}running", _middles(result), running),
            Curve(f"{name}waiting", _middles(result), waiting),
        ]
    return Panel("Requests", _TIME, "requests", curves)


def ranks(runs: Runs) -> Panel:
    """How unevenly requests lie on data-parallel ranks, which all wait for the fullest."""
    result = runs()
    each = np.array([_load(result, [rank])[0] for rank in range(result.summary.replicas)])
    curves = [
        Curve("fullest rank", _middles(result), each.max(axis=0)),
        Curve("mean", _middles(result), each.mean(axis=0)),
        Curve("emptiest", _middles(result), each.min(axis=0)),
    ]
    return Panel("Requests running on a rank", _TIME, "requests", curves)


def sides(runs: Runs) -> Bars:
    """What the GPUs of each pool do: work, wait for the other side of their unit, or nothing."""
    pools = runs().summary.pools
    stalled = [pool.busy * (pool.stalled or 0.0) for pool in pools]
    parts = [
        ("at work", [100 * (pool.busy - lost) for pool, lost in zip(pools, stalled, strict=True)]),
        ("waiting for the other side", [100 * lost for lost in stalled]),
    ]
    names = [f"{pool.name}\n{pool.gpus} {pool.gpu}" for pool in pools]
    return Bars("GPU time by pool", "% of the run", names, [part for part in parts if any(part[1])])


def links(runs: Runs) -> Bars:
    """How full the links are that keys and values cross."""
    used = {name: use for name, use in runs().summary.links.items() if use.bytes}
    mean = [100 * use.mean_use for use in used.values()]
    more = [100 * (use.peak_use - use.mean_use) for use in used.values()]
    names = [name.replace("_", " ") for name in used]
    return Bars("Links from prefill to decode", "% of what they carry", names, [("mean", mean), ("busiest", more)])


def replicas(runs: Runs) -> Panel:
    """Replicas that serve, over time."""
    result = runs()
    _, end = _ends(result)
    curves = []
    assert result.summary.dynamics is not None
    pools = result.summary.dynamics.pools
    for pool in pools:
        at, number = zip(*pool.replicas, (end, pool.replicas[-1][1]), strict=True)
        curves.append(Curve(pool.name if len(pools) > 1 else "", at, number, kind="steps"))
    return Panel("Replicas that serve", _TIME, "replicas", curves)


def arrivals(runs: Runs) -> Panel:
    """Requests a second as they come, by kind of traffic."""
    result = runs()
    start, end = _ends(result)
    edges = np.linspace(start, end, 61)
    labels = result.requests["label"]
    kinds = list(dict.fromkeys(labels.tolist()))
    curves = []
    for kind in kinds:
        counts, _ = np.histogram(result.requests["arrival"][labels == kind], edges)
        curves.append(Curve(kind if len(kinds) > 1 else "", (edges[1:] + edges[:-1]) / 2, counts / np.diff(edges)))
    return Panel("Arrivals", _TIME, "requests/s", curves)


def first_tokens(runs: Runs) -> Panel:
    """Median and p95 of TTFT by the time of arrival."""
    result = runs()
    lines = [each for each in result.plot.arrivals().marks if each.kind == "line"]
    curves = [Curve(name, each.x, each.y) for name, each in zip(("p50", "p95"), lines, strict=True)]
    return Panel("TTFT by time of arrival", _TIME, "seconds", curves, _limits(result, "ttft"))


def tiers(runs: Runs) -> Bars:
    """Where the tokens of prompts were found."""
    found = runs().summary.prefix_cache.by_tier
    rates = [100 * tier.hit_rate for tier in found.values()]
    names, rates = [*found, "computed"], [*rates, 100 - sum(rates)]
    return Bars("Where tokens of prompts were found", "% of tokens", names, [("", rates)])


def cdf(metric: str, variants: Mapping[str, Sequence[str]]) -> Drawing:
    """A latency's distribution under several variants of a scenario."""

    def draw(runs: Runs) -> Panel:
        curves = [
            Curve(name, np.quantile(_values(runs(*changes), metric), _QUANTILES), 100 * _QUANTILES)
            for name, changes in variants.items()
        ]
        return Panel(f"{_METRICS[metric]} of requests", "seconds", "% no slower", curves)

    return draw


def cdf_by_kind(metric: str) -> Drawing:
    """A latency's distribution for each kind of traffic."""

    def draw(runs: Runs) -> Panel:
        result = runs()
        labels = result.requests["label"]
        curves = [
            Curve(kind, np.quantile(_values(result, metric, labels == kind), _QUANTILES), 100 * _QUANTILES)
            for kind in dict.fromkeys(labels.tolist())
        ]
        return Panel(f"{_METRICS[metric]} of requests", "seconds", "% no slower", curves)

    return draw


def against(
    key: str,
    values: Sequence[float],
    name: str,
    figure: tuple[str, str],
    variants: Mapping[str, Sequence[str]] | None = None,
) -> Drawing:
    """A figure of the summary as one setting of the scenario grows, perhaps under several variants."""
    part, which = figure
    label = _METRICS.get(part, "Output tokens per second")

    def draw(runs: Runs) -> Panel:
        curves = []
        for variant, changes in (variants or {"": ()}).items():
            found = [figures(runs(*changes, f"{key}={value:g}").summary)[f"{part}.{which}"] for value in values]
            curves.append(Curve(variant, values, found))
        up = "seconds" if part in _METRICS else "tokens/s"
        kind = f"{label}, {which}" if part in _METRICS else label
        return Panel(kind, name, up, curves, _limits(runs(), part) if which == "p95" else ())

    return draw


def _load(result: Result, replicas: Sequence[int]) -> tuple[Floats, Floats]:
    """Requests running and waiting on some replicas, as means over each bin of time."""
    axis = time_axis(result)
    assert axis is not None
    steps = result.steps
    own = np.isin(steps["replica"], np.array(replicas))
    start, end = steps["start"][own], steps["end"][own]
    running, waiting = integrals(axis, start, end, steps["running"][own], steps["waiting"][own]) / axis.width
    return running, waiting


def _middles(result: Result) -> Floats:
    axis = time_axis(result)
    assert axis is not None
    return np.asarray(axis.start + (np.arange(axis.bins) + 0.5) * axis.width)


def _ends(result: Result) -> tuple[float, float]:
    axis = time_axis(result)
    assert axis is not None
    return axis.start, axis.end


def _values(result: Result, metric: str, among: NDArray[np.bool_] | None = None) -> Floats:
    known = np.isfinite(result.requests[metric]) & (result.requests["status"] == "finished")
    return np.asarray(result.requests[metric][known if among is None else known & among])


def _limits(result: Result, metric: str) -> list[tuple[float, str]]:
    verdict = result.summary.slo.get(f"{metric}_p95")
    return [] if verdict is None else [(verdict.limit, "limit of p95")]
