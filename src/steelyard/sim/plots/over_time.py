"""Charts over the time of a run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from steelyard.plot import Axis, Chart, Marks
from steelyard.plot.marks import HUES, Hue
from steelyard.records.columns import Floats
from steelyard.sim.handovers import LinkSpans
from steelyard.sim.plots.axis import TimeAxis
from steelyard.sim.plots.binned import PARTS, Binned, integrals
from steelyard.sim.plots.load import PoolLoad
from steelyard.sim.summary import Steady
from steelyard.words import percent, significant

_PAIR: tuple[Hue, Hue] = ("2", "1")
Window = Steady | None


def throughput(tokens: tuple[Binned, Binned] | None, axis: TimeAxis | None, steady: Window) -> Chart:
    """Tokens per second, read and written."""
    marks = []
    if tokens is not None and axis is not None:
        for name, each, hue in zip(("in", "out"), tokens, _PAIR, strict=True):
            marks += _curve(axis, each, name, hue, f"mean {significant(_mean(each))}")
    return _over_time("throughput", "Throughput", Axis("tokens per second", "number", low=0.0), axis, marks, steady)


def requests(load: PoolLoad | None, axis: TimeAxis | None, steady: Window, pool: str = "", suffix: str = "") -> Chart:
    """Requests in the system."""
    marks = []
    if load is not None and axis is not None and load.steps:
        for name, each, hue in zip(("running", "waiting"), (load.running(), load.waiting()), HUES, strict=False):
            told = f"mean {significant(_mean(each))}, most {significant(float(each.high.max()))}"
            marks += _curve(axis, each, name, hue, told)
    title = f"Requests: {pool}" if pool else "Requests in the system"
    return _over_time(f"queue{suffix}", title, Axis("requests", "number", low=0.0), axis, marks, steady)


def batch(load: PoolLoad | None, axis: TimeAxis | None, steady: Window, pool: str = "", suffix: str = "") -> Chart:
    """Requests in a step."""
    marks = []
    if load is not None and axis is not None and load.steps:
        each = load.batch()
        name = "mean over replicas" if load.replicas > 1 else "mean"
        marks = _curve(axis, each, name, "1", f"up to {significant(float(each.high.max()))}")
    title = f"Batch size: {pool}" if pool else "Batch size, requests per step"
    return _over_time(f"batch{suffix}", title, Axis("requests per step", "number", low=0.0), axis, marks, steady)


def kv(load: PoolLoad | None, axis: TimeAxis | None, steady: Window, pool: str = "", suffix: str = "") -> Chart:
    """Share of KV blocks in use."""
    marks = []
    if load is not None and axis is not None and load.steps and load.has_blocks:
        each = load.kv()
        marks = _curve(axis, each, "mean", "1", percent(_mean(each)))
        name = "fullest replica" if load.replicas > 1 else "peak"
        told = percent(float(load.peak.max()))
        marks.append(Marks("line", _middles(axis), load.peak, name, "2", said=told))
    high = min(1.0, 1.08 * float(load.peak.max(initial=0.0))) if load is not None else None
    upright = Axis("share of KV blocks", "share", low=0.0, high=high or None)
    title = f"KV cache in use: {pool}" if pool else "KV cache in use"
    return _over_time(f"kv{suffix}", title, upright, axis, marks, steady)


def links(spans: Mapping[str, LinkSpans], axis: TimeAxis | None, steady: Window) -> Chart:
    """Share of time in which links of each kind carry something."""
    marks: list[Marks] = []
    if axis is not None:
        fine = axis.finer(PARTS)
        for (name, each), hue in zip(spans.items(), HUES, strict=False):
            sending = integrals(fine, each.start, each.end, np.ones(len(each.start)))[0]
            binned = Binned.of(sending, fine.width * each.links)
            marks += _curve(axis, binned, name.replace("_", " "), hue, f"mean {percent(_mean(binned))}")
    upright = Axis("share of links that are sending", "share", low=0.0)
    return _over_time("links", "Links in use", upright, axis, marks, steady)


def _curve(axis: TimeAxis, each: Binned, name: str, hue: Hue, told: str) -> list[Marks]:
    """The means as a line within the band of their parts."""
    at = _middles(axis)
    return [Marks("band", at, each.high, "", hue, low=each.low), Marks("line", at, each.mean, name, hue, said=told)]


def _middles(axis: TimeAxis) -> Floats:
    return np.asarray(axis.start + (np.arange(axis.bins) + 0.5) * axis.width, dtype=np.float64)


def _mean(each: Binned) -> float:
    return float(each.mean.mean())


def _over_time(name: str, title: str, up: Axis, axis: TimeAxis | None, marks: list[Marks], steady: Window) -> Chart:
    if axis is None or not marks:
        return Chart(name, title, Axis("time", "clock"), up, ())
    if steady is not None:
        start, end = np.array([max(axis.start, steady.start_s)]), np.array([min(axis.end, steady.end_s)])
        marks = [Marks("spans", start, np.ones(1), "steady", "good", ends=end), *marks]
    return Chart(name, title, Axis("time", "clock", axis.start, axis.end), up, tuple(marks), group="time")
