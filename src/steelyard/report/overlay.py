"""Curves over each other in one small SVG figure, which needs no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from steelyard.report.words import count, percent, seconds

if TYPE_CHECKING:
    from steelyard.validate.capture import QueueLoad

Floats = NDArray[np.float64]

_WIDTH, _HEIGHT = 420.0, 180.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 44.0, 12.0, 8.0, 22.0
_QUANTILES = np.linspace(0, 1, 201)
_MOMENTS = 400


def overlaid_cdf(measured: Floats, simulated: Floats) -> str:
    """Both distributions, up to the larger p99: the last per cent would squeeze the rest."""
    if not len(measured) or not len(simulated):
        return '<div class="empty">no such times</div>'
    ends = [float(np.quantile(values, 0.99)) for values in (measured, simulated)]
    return overlaid_quantiles([np.quantile(values, _QUANTILES) for values in (measured, simulated)], _QUANTILES, ends)


def overlaid_quantiles(curves: Sequence[Floats], shares: Floats, ends: Sequence[float]) -> str:
    """Distributions by their quantiles at these shares, up to the largest of their ``ends``."""
    right = max(ends) * 1.02 or 1.0
    lines = [_line(np.minimum(curve, right), shares, right, 1.0, i) for i, curve in enumerate(curves, 1)]
    return _svg(lines, (seconds(right / 2), seconds(right)), (percent(0.5), percent(1.0)))


def overlaid_load(load: tuple[QueueLoad, QueueLoad], queue: Literal["running", "waiting"]) -> str:
    """A queue's length over time, each side counted from its own first step."""
    known = [side for side in load if len(side.start)]
    if not known:
        return '<div class="empty">no steps</div>'
    right = max(float(side.end.max() - side.start[0]) for side in known) or 1.0
    moments = np.linspace(0, right, _MOMENTS)
    curves = [_length(side, queue, moments) for side in load]
    top = max(float(curve.max()) for curve in curves) or 1.0
    lines = [_line(moments, curve, right, top, i) for i, curve in enumerate(curves, 1)]
    return _svg(lines, (seconds(right / 2), seconds(right)), (count(top / 2), count(top)))


def _length(side: QueueLoad, queue: Literal["running", "waiting"], moments: Floats) -> Floats:
    """The queue's length at each moment: that of the running step, or 0 if none runs."""
    if not len(side.start):
        return np.zeros(len(moments))
    lengths = side.running if queue == "running" else side.waiting
    newest = np.maximum(np.searchsorted(side.start - side.start[0], moments, side="right") - 1, 0)
    idle = moments > side.end[newest] - side.start[0]
    return np.where(idle, 0, lengths[newest]).astype(np.float64)


def _line(x: Floats, y: Floats, right: float, top: float, series: int) -> str:
    across = _LEFT + x / right * (_WIDTH - _LEFT - _RIGHT)
    down = _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across.tolist(), down.tolist(), strict=True))
    return f'<polyline class="line c{series}" points="{points}"/>'


def _svg(lines: list[str], across: tuple[str, str], up: tuple[str, str]) -> str:
    """Axes named at half and full length."""
    foot, right, span = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    marks = [f'<path class="axis" d="M{_LEFT:.0f} {foot:.0f}H{right:.0f}"/>']
    for share, name in zip((0.5, 1.0), up, strict=True):
        y = foot - share * span
        marks.append(f'<path class="grid" d="M{_LEFT:.0f} {y:.0f}H{right:.0f}"/>')
        marks.append(f'<text x="{_LEFT - 5:.0f}" y="{y + 4:.0f}" text-anchor="end">{escape(name)}</text>')
    for share, name, anchor in zip((0.5, 1.0), across, ("middle", "end"), strict=True):
        x = _LEFT + share * (right - _LEFT)
        marks.append(f'<text x="{x:.0f}" y="{_HEIGHT - 6:.0f}" text-anchor="{anchor}">{escape(name)}</text>')
    return f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img">{"".join(marks)}{"".join(lines)}</svg>'
