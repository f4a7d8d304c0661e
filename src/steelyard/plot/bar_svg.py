"""Horizontal bars as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from steelyard.plot.canvas import BOTTOM, HEAD, LETTER, Scale, opening, scale
from steelyard.plot.marks import Axis, Bar
from steelyard.plot.units import marked, ticks

_ROW = 24.0
_WIDEST = 0.4  # of a bar chart: its names


def bars_svg(
    title: str, x: Axis, ends: tuple[float, float], bars: Sequence[Bar], band: tuple[float, float] | None, width: float
) -> str:
    """Horizontal bars. With a title they have a white card and their own style; without, they are for a page."""
    head = HEAD if title else 0.0
    foot = head + _ROW * len(bars)
    names = min(_WIDEST * width, LETTER * max((len(each.label) for each in bars), default=0) + 16)
    texts = min(_WIDEST * width, LETTER * max((len(each.text) for each in bars), default=0) + 16)
    across = scale(Axis("", x.unit, *ends), names, width - texts)
    parts = [opening(width, foot + BOTTOM, title)]
    if band is not None:
        low, high = (across(min(max(end, ends[0]), ends[1])) for end in band)
        parts.append(_rect("shade", low, head, high - low, foot - head))
    for tick in ticks(*ends, most=4, unit=x.unit):
        place, text = across(tick), escape(marked(x.unit, tick, ends[1] - ends[0]))
        parts.append(f'<path class="{"axis" if tick == 0 else "grid"}" d="M{place:.1f} {head:g}V{foot:g}"/>')
        parts.append(f'<text x="{place:.1f}" y="{foot + 16:g}" text-anchor="middle">{text}</text>')
    for number, each in enumerate(bars):
        parts.append(_bar(each, head + _ROW * number, across, ends, names, width - texts))
    return "".join([*parts, "</svg>"])


def _bar(each: Bar, top: float, across: Scale, ends: tuple[float, float], names: float, right: float) -> str:
    def place(value: float) -> float:
        return across(min(max(value, ends[0]), ends[1]))

    start, end = sorted((place(each.start), place(each.value)))
    middle = top + _ROW / 2
    most = int((names - 10) / LETTER)
    label = each.label if len(each.label) <= most else f"{each.label[: max(1, most - 1)]}…"
    parts = [
        f'<text x="{names - 8:.1f}" y="{middle + 4:.1f}" text-anchor="end">{escape(label)}</text>',
        _rect(f"bars h{each.hue}", start, top + 5, max(end - start, 1.0), _ROW - 10),
    ]
    if each.interval is not None:
        low, high = map(place, each.interval)
        inside = (place(end) for end in each.interval if ends[0] <= end <= ends[1])
        caps = "".join(f"M{x:.1f} {middle - 4:.1f}v8" for x in inside)
        parts.append(f'<path class="whisker" d="M{low:.1f} {middle:.1f}H{high:.1f}{caps}"/>')
    parts.append(f'<text class="value" x="{right + 8:.1f}" y="{middle + 4:.1f}">{escape(each.text)}</text>')
    return "".join(parts)


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2"/>'
