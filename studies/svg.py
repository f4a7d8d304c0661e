"""Small charts as SVG text: a row of panels on one card, equal bytes for equal numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

COLOURS = ("#1f6fb2", "#c2590a", "#0f7f6c", "#7a4fa3", "#8592a0", "#b3261e")
_WIDTH, _HEIGHT = 316.0, 246.0  # of a panel
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 10.0, 72.0, 36.0  # around its plot
_MARGIN, _HEAD = 12.0, 34.0  # around all panels, and above them
_LETTER = 6.0  # width of one at the size of a legend
_STYLE = (
    "text{font:11px system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;fill:#52606d}"
    ".h{font-size:15px;font-weight:600;fill:#17212b}.t{font-size:12px;font-weight:600;fill:#17212b}"
    ".g{stroke:#e9edf0;fill:none}.a{stroke:#8592a0;fill:none}.l{fill:none;stroke-width:1.7;stroke-linejoin:round}"
)


@dataclass(frozen=True)
class Curve:
    """One series of a panel; ``steps`` hold their value until the next one, ``dots`` are not joined."""

    name: str
    x: ArrayLike
    y: ArrayLike
    kind: Literal["line", "steps", "dots"] = "line"


@dataclass(frozen=True)
class Panel:
    """Curves over two axes; ``limits`` are drawn across, (value, name) of the upright axis."""

    title: str
    across: str
    up: str
    curves: Sequence[Curve]
    limits: Sequence[tuple[float, str]] = ()


@dataclass(frozen=True)
class Bars:
    """Stacked bars: every part has a value for each name, and the parts of one name stand on each other."""

    title: str
    up: str
    names: Sequence[str]
    parts: Sequence[tuple[str, Sequence[float]]]
    limits: Sequence[tuple[float, str]] = ()


def figure(title: str, panels: Sequence[Panel | Bars]) -> str:
    """The whole card."""
    width, height = 2 * _MARGIN + len(panels) * _WIDTH, _HEAD + _HEIGHT + _MARGIN
    drawn = []
    for i, panel in enumerate(panels):
        inside = _curves(panel) if isinstance(panel, Panel) else _bars(panel)
        drawn.append(f'<g transform="translate({_MARGIN + i * _WIDTH:g},{_HEAD:g})">{inside}</g>\n')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>\n"
        f'<rect width="{width:g}" height="{height:g}" rx="10" fill="#fff"/>'
        f'<text class="h" x="{_MARGIN + 6:g}" y="25">{escape(title)}</text>\n{"".join(drawn)}</svg>\n'
    )


@dataclass(frozen=True)
class _Scale:
    """From values to places, with round values to mark."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, values: ArrayLike) -> list[float]:
        shares = (np.asarray(values, dtype=float) - self.low) / (self.high - self.low)
        return [float(place) for place in self.start + np.clip(shares, 0.0, 1.0) * (self.end - self.start)]

    def marks(self) -> list[float]:
        step = _round_step((self.high - self.low) / 4)
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _round_step(least: float) -> float:
    """The next of 1, 2, 2.5 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * digit for digit in (1, 2, 2.5, 5, 10) if power * digit >= least * (1 - 1e-9))


def _number(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.6g}"


def _upright(values: Sequence[float], limits: Sequence[tuple[float, str]]) -> _Scale:
    """From 0 to a little above all values, and to a limit that is not far above them."""
    finite = [value for value in values if math.isfinite(value)]
    top = max(finite, default=0.0)
    top = max([top, *(limit for limit, _ in limits if limit <= 3 * top)]) * 1.06
    return _Scale(0.0, top or 1.0, _HEIGHT - _BOTTOM, _TOP)


def _frame(title: str, up: str, scale: _Scale, limits: Sequence[tuple[float, str]]) -> list[str]:
    """Names, the upright axis and the limits."""
    parts = [f'<text class="t" x="6" y="16">{escape(title)}</text><text x="6" y="64">{escape(up)}</text>']
    right = _WIDTH - _RIGHT
    for mark in scale.marks():
        (y,) = scale([mark])
        parts.append(f'<path class="{"a" if mark == 0 else "g"}" d="M{_LEFT:g} {y:.1f}H{right:g}"/>')
        parts.append(f'<text x="{_LEFT - 5:g}" y="{y + 4:.1f}" text-anchor="end">{_number(mark)}</text>')
    for limit, name in limits:
        if limit <= scale.high:
            (y,) = scale([limit])
            parts.append(f'<path d="M{_LEFT:g} {y:.1f}H{right:g}" stroke="#b3261e" stroke-dasharray="4 3"/>')
            parts.append(f'<text x="{right:g}" y="{y - 4:.1f}" text-anchor="end">{escape(name)}</text>')
    return parts


def _legend(names: Sequence[str]) -> str:
    """Names with their colours, one after the other in two rows; nothing where one series has no name."""
    parts, x, y = [], 6.0, 25.0
    for i, name in enumerate(names):
        if not name:
            continue
        wide = 13 + _LETTER * len(name) + 10
        if x > 6 and x + wide > _WIDTH:
            x, y = 6.0, y + 14
        parts.append(f'<rect x="{x:.0f}" y="{y:g}" width="9" height="9" rx="2" fill="{_colour(i)}"/>')
        parts.append(f'<text x="{x + 13:.0f}" y="{y + 8:g}">{escape(name)}</text>')
        x += wide
    return "".join(parts)


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _curves(panel: Panel) -> str:
    xs = [float(x) for curve in panel.curves for x in np.asarray(curve.x, dtype=float) if math.isfinite(x)]
    ys = [float(y) for curve in panel.curves for y in np.asarray(curve.y, dtype=float)]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    low = 0.0 if 0 <= low < 0.3 * high else low
    across = _Scale(low, high if high > low else low + 1.0, _LEFT, _WIDTH - _RIGHT)
    up = _upright(ys, panel.limits)
    parts = [*_frame(panel.title, panel.up, up, panel.limits), _legend([curve.name for curve in panel.curves])]
    foot = _HEIGHT - _BOTTOM
    for mark in across.marks():
        (x,) = across([mark])
        parts.append(f'<text x="{x:.1f}" y="{foot + 15:g}" text-anchor="middle">{_number(mark)}</text>')
    right = _WIDTH - _RIGHT
    parts.append(f'<text x="{right:g}" y="{foot + 30:g}" text-anchor="end">{escape(panel.across)}</text>')
    parts += [_drawn(curve, i, across, up) for i, curve in enumerate(panel.curves)]
    return "".join(parts)


def _drawn(curve: Curve, i: int, across: Callable[[ArrayLike], list[float]], up: _Scale) -> str:
    x, y = np.asarray(curve.x, dtype=float), np.asarray(curve.y, dtype=float)
    known = np.isfinite(x) & np.isfinite(y)
    points = list(zip(across(x[known]), up(y[known]), strict=True))
    if curve.kind == "dots":
        return "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.6" fill="{_colour(i)}"/>' for a, b in points)
    if not points:
        return ""
    if curve.kind == "steps":
        path = f"M{points[0][0]:.1f} {points[0][1]:.1f}" + "".join(f"H{a:.1f}V{b:.1f}" for a, b in points[1:])
        return f'<path class="l" d="{path}" stroke="{_colour(i)}"/>'
    joined = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    return f'<polyline class="l" points="{joined}" stroke="{_colour(i)}"/>'


def _bars(panel: Bars) -> str:
    totals = [sum(values[i] for _, values in panel.parts) for i in range(len(panel.names))]
    up = _upright(totals, panel.limits)
    parts = [*_frame(panel.title, panel.up, up, panel.limits), _legend([name for name, _ in panel.parts])]
    room = (_WIDTH - _LEFT - _RIGHT) / len(panel.names)
    for i, name in enumerate(panel.names):
        x, stands_on = _LEFT + (i + 0.5) * room, 0.0
        for k, (_, values) in enumerate(panel.parts):
            foot, top = up([stands_on, stands_on + values[i]])
            wide = min(0.7 * room, 46.0)
            box = f'x="{x - wide / 2:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{foot - top:.1f}"'
            parts.append(f'<rect {box} fill="{_colour(k)}"/>')
            stands_on += values[i]
        for line, text in enumerate(name.split("\n")):
            y = _HEIGHT - _BOTTOM + 15 + 13 * line
            parts.append(f'<text x="{x:.1f}" y="{y:g}" text-anchor="middle">{escape(text)}</text>')
    return "".join(parts)
