"""Charts of a validation: what was measured over what was simulated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.plot import Axis, Chart, Marks
from steelyard.plot.marks import HUES
from steelyard.validate.capture import QueueLoad
from steelyard.validate.compare import LATENCIES, WorkloadComparison

Floats = NDArray[np.float64]

_TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End to end"}
_SHARES = np.linspace(0, 0.99, 200)  # the last per cent would squeeze the rest
_MOMENTS = 400
_SIDES = ("measured", "simulated")


def latencies(each: WorkloadComparison, number: int) -> list[Chart]:
    """Both distributions of each latency, up to p99."""
    return [_distribution(name, each.samples[name], number) for name in LATENCIES]


def _distribution(name: str, samples: tuple[Floats, Floats], number: int) -> Chart:
    marks = [
        Marks("line", np.quantile(values, _SHARES), _SHARES, side, hue)
        for values, side, hue in zip(samples, _SIDES, HUES, strict=False)
        if len(values)
    ]
    up = Axis("share of requests", "share", 0.0, 1.0)
    title = _TITLES[name]
    return Chart(f"{name}-{number}", f"{title}, up to p99", Axis(title, "s", low=0.0), up, tuple(marks))


def queues(each: WorkloadComparison, number: int) -> list[Chart]:
    """Running and waiting requests over time, each side counted from its own first step."""
    return [_queue(each.load, "running", number), _queue(each.load, "waiting", number)]


def _queue(load: Sequence[QueueLoad], queue: Literal["running", "waiting"], number: int) -> Chart:
    ends = [float(side.end.max() - side.start[0]) for side in load if len(side.start)]
    at = np.linspace(0, max(ends, default=1.0) or 1.0, _MOMENTS)
    marks = [
        Marks("line", at, _length(side, queue, at), name, hue)
        for side, name, hue in zip(load, _SIDES, HUES, strict=False)
        if len(side.start)
    ]
    along = Axis("time from the first step", "clock", low=0.0)
    title, group = f"Requests {queue}", f"queues-{number}"
    return Chart(f"{queue}-{number}", title, along, Axis("requests", "number", low=0.0), tuple(marks), group=group)


def _length(side: QueueLoad, queue: Literal["running", "waiting"], moments: Floats) -> Floats:
    """The queue's length at each moment: that of the running step, or 0 if none runs."""
    lengths = side.running if queue == "running" else side.waiting
    newest = np.maximum(np.searchsorted(side.start - side.start[0], moments, side="right") - 1, 0)
    idle = moments > side.end[newest] - side.start[0]
    return np.where(idle, 0, lengths[newest]).astype(np.float64)
