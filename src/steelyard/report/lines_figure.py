"""Small charts of lines, as SVG: equal bytes for equal figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, isfinite, log10

from steelyard.report.words import significant

COLOURS = ("#0f7f6c", "#c2590a", "#2b5d9b", "#8d3b72", "#6b7a12", "#b03a2e", "#4a5a6a", "#1a9ba8")
_WIDTH, _HEIGHT = 298.0, 220.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 48.0, 12.0, 34.0, 40.0
_TICKS = 4  # about so many on the upright axis
_WIDE = 8.0  # ratio of the largest to the smallest place from which on the axis has a logarithmic scale
_MOST_NAMES = 7  # names of places that fit below a chart
_STYLE = (
    "text{font:11px system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;fill:#52606d}"
    ".h{font-size:13px;font-weight:600;fill:#17212b}.r{text-anchor:end}.m{text-anchor:middle}"
    ".g{stroke:#e4e8ec}.a{stroke:#9aa5b1}"
)


@dataclass(frozen=True)
class ChartLine:
    """Named values at the chart's places; None where there is none. ``hollow`` places miss a limit."""

    name: str
    values: Sequence[float | None]
    hollow: Sequence[bool]


@dataclass(frozen=True)
class Chart:
    """Lines over places, which are numbers or names."""

    title: str
    along: str  # what places are
    places: Sequence[str]
    lines: Sequence[ChartLine]


def chart_svg(chart: Chart) -> str:
    """A chart with its axes. Hollow marks are places that miss a limit."""
    across, tops = _places(chart.places), [v for line in chart.lines for v in line.values if v is not None]
    ticks = _ticks(max(tops, default=1.0))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" width="{_WIDTH:g}" role="img">',
        f"<title>{escape(chart.title)}</title><style>{_STYLE}</style>",
        f'<rect width="{_WIDTH:g}" height="{_HEIGHT:g}" fill="#fff"/>',
        f'<text class="h" x="8" y="18">{escape(chart.title)}</text>',
    ]
    for tick in ticks:
        y = _y(tick, ticks[-1])
        parts.append(f'<line class="g" x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="r" x="{_LEFT - 6:g}" y="{y + 4:.1f}">{escape(_short(tick))}</text>')
    every = -(-len(chart.places) // _MOST_NAMES)
    for number, (x, name) in enumerate(zip(across, chart.places, strict=True)):
        if number % every == 0:
            parts.append(f'<text class="m" x="{x:.1f}" y="{_HEIGHT - 24:g}">{escape(_cut(name))}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="m" x="{middle:g}" y="{_HEIGHT - 8:g}">{escape(chart.along)}</text>')
    for number, line in enumerate(chart.lines):
        parts += _drawn(line, across, ticks[-1], COLOURS[number % len(COLOURS)])
    return "\n".join([*parts, "</svg>"])


def legend(names: Sequence[str], title: str) -> str:
    """The colours of lines, as HTML; empty for a single line without a name."""
    if len(names) < 2:
        return ""
    keys = "".join(
        f'<li><i style="background:{COLOURS[i % len(COLOURS)]}"></i>{escape(name)}</li>' for i, name in enumerate(names)
    )
    return f'<ul class="legend"><li>{escape(title)}:</li>{keys}</ul>'


def _drawn(line: ChartLine, across: Sequence[float], top: float, colour: str) -> list[str]:
    """A line, broken where values are missing, and its marks."""
    parts, run = list[str](), list[str]()
    for x, value in zip(across, line.values, strict=True):
        if value is None:
            parts += _path(run, colour)
            run = []
        else:
            run.append(f"{x:.1f},{_y(value, top):.1f}")
    parts += _path(run, colour)
    for x, value, hollow in zip(across, line.values, line.hollow, strict=True):
        if value is not None:
            fill = "#fff" if hollow else colour
            told = f"<title>{escape(f'{line.name} {significant(value)}'.strip())}</title>"
            place = f'cx="{x:.1f}" cy="{_y(value, top):.1f}" r="3"'
            parts.append(f'<circle {place} fill="{fill}" stroke="{colour}" stroke-width="1.5">{told}</circle>')
    return parts


def _path(points: Sequence[str], colour: str) -> list[str]:
    if len(points) < 2:
        return []
    return [f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="1.8"/>']


def _places(names: Sequence[str]) -> list[float]:
    """Where places lie: as numbers if all are, the further apart the more they differ; otherwise evenly."""
    numbers = [_number(name) for name in names]
    known = [number for number in numbers if number is not None]
    if len(known) < len(names) or len(set(known)) < 2:
        shares = [(i + 0.5) / len(names) for i in range(len(names))]
    else:
        if min(known) > 0 and max(known) / min(known) >= _WIDE:
            known = [log10(number) for number in known]
        low, high = min(known), max(known)
        shares = [0.04 + 0.92 * (number - low) / (high - low) for number in known]
    return [_LEFT + share * (_WIDTH - _LEFT - _RIGHT) for share in shares]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


def _y(value: float, top: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / top)


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to the first that is not below the largest value."""
    if most <= 0:
        return [0.0, 1.0]
    power = 10.0 ** floor(log10(most / _TICKS))
    step = next(each * power for each in (1, 2, 2.5, 5, 10) if each * power * _TICKS >= most * 0.999)
    count = 1
    while count * step < most * 0.9999:
        count += 1
    return [i * step for i in range(count + 1)]


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:.6g}"


def _cut(name: str) -> str:
    return name if len(name) <= 12 else f"{name[:11]}…"
