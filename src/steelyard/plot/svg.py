"""Charts as SVG text that needs nothing else; equal bytes for equal figures.

Classes of shapes are those of the page's style sheet. A chart on a card carries its own style instead.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from steelyard.plot.canvas import BOTTOM, HEAD, LEFT, LEGEND, LETTER, RIGHT, TOP, Scale, opening, scale
from steelyard.plot.marks import Axis, Marks, Threshold
from steelyard.plot.shapes import drawn
from steelyard.plot.units import marked, said, ticks


def chart_svg(
    title: str,
    x: Axis,
    y: Axis,
    marks: Sequence[Marks],
    limits: Sequence[Threshold],
    width: float,
    height: float,
    empty: str,
) -> str:
    """A chart. With a title it has a white card, a legend and its own style; without, it is for a page."""
    named = _legend(marks, width) if title else []
    head = HEAD + LEGEND * len(named) if title else 0.0
    parts = [opening(width, height + head, title)]
    for row, keys in enumerate(named):
        parts.append(f'<g transform="translate(12,{HEAD + LEGEND * row + 4:g})">{keys}</g>')
    if not marks:
        parts.append(f'<text x="{width / 2:g}" y="{head + height / 2:g}" text-anchor="middle">{escape(empty)}</text>')
        return "".join([*parts, "</svg>"])
    across, up = scale(x, LEFT, width - RIGHT), scale(y, height - BOTTOM, TOP)
    inside = [*_frame(x, y, across, up, width, height)]
    inside += [drawn(each, across, up, height) for each in marks]
    inside += [_limit(each, x, y, across, up, width, height) for each in limits]
    parts.append(f'<g transform="translate(0,{head:g})">{"".join(inside)}</g></svg>')
    return "".join(parts)


def stacked(drawings: Sequence[str]) -> str:
    """Several SVGs as one, one below the other."""
    sizes = [re.match(r'<svg [^>]*viewBox="0 0 ([\d.]+) ([\d.]+)"', each) for each in drawings]
    wide = max((float(size[1]) for size in sizes if size), default=0.0)
    parts, at = [], 0.0
    for size, drawing in zip(sizes, drawings, strict=True):
        if size is not None:
            parts.append(f'<svg y="{at:g}" height="{float(size[2]):g}" {drawing.removeprefix("<svg ")}')
            at += float(size[2]) + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {at:g}" width="{wide:g}">{"".join(parts)}</svg>'
    )


def _legend(marks: Sequence[Marks], width: float) -> list[str]:
    """Names with their colours, in rows."""
    rows, at = [""], 0.0
    for name, hue in dict.fromkeys((each.name, each.hue) for each in marks if each.name):
        wide = 18 + LETTER * len(name) + 14
        if at and at + wide > width - 24:
            rows.append("")
            at = 0.0
        rows[-1] += f'<rect class="h{hue}" x="{at:.0f}" y="2" width="11" height="9" rx="2"/>'
        rows[-1] += f'<text x="{at + 16:.0f}" y="11">{escape(name)}</text>'
        at += wide
    return [row for row in rows if row]


def _frame(x: Axis, y: Axis, across: Scale, up: Scale, width: float, height: float) -> list[str]:
    """Both axes with their values."""
    assert y.low is not None and y.high is not None and x.low is not None and x.high is not None
    foot, right = height - BOTTOM, width - RIGHT
    parts = []
    for tick in ticks(y.low, y.high, 5, y.unit, y.log):
        place = up(tick)
        parts.append(f'<path class="grid" d="M{LEFT:g} {place:.1f}H{right:g}"/>')
        text = escape(marked(y.unit, tick, y.high - y.low))
        parts.append(f'<text x="{LEFT - 6:g}" y="{place + 4:.1f}" text-anchor="end">{text}</text>')
    parts.append(f'<path class="axis" d="M{LEFT:g} {foot:g}H{right:g}"/>')
    if x.names:
        every = max(1, -(-len(x.names) * 70 // int(right - LEFT)))
        shown = [(float(place), name) for place, name in enumerate(x.names) if place % every == 0]
    else:
        most = max(2, int((right - LEFT) / 64))
        shown = [(t, marked(x.unit, t, x.high - x.low)) for t in ticks(x.low, x.high, most, x.unit, x.log)]
    for value, name in shown:
        place = across(value)
        anchor = "end" if place > right - 14 else "middle"
        parts.append(f'<text x="{place:.1f}" y="{height - 7:g}" text-anchor="{anchor}">{escape(name)}</text>')
    return parts


def _limit(each: Threshold, x: Axis, y: Axis, across: Scale, up: Scale, width: float, height: float) -> str:
    """A line across; a limit beyond the end of the axis is named at the end."""
    axis = x if each.axis == "x" else y
    assert axis.high is not None
    beyond = each.at > axis.high
    text = escape(f"{each.name} {said(axis.unit, each.at)}" + (" →" if beyond and each.axis == "x" else ""))
    if each.axis == "y":
        place = TOP if beyond else up(each.at)
        line = "" if beyond else f'<path class="limit" d="M{LEFT:g} {place:.1f}H{width - RIGHT:g}"/>'
        return (
            f'{line}<text class="limit-name" x="{width - RIGHT:g}" y="{place + 12:.1f}" text-anchor="end">{text}</text>'
        )
    place = width - RIGHT if beyond else across(each.at)
    line = "" if beyond else f'<path class="limit" d="M{place:.1f} {TOP:g}V{height - BOTTOM:g}"/>'
    side, shift = ("end", -5) if beyond or place > width * 0.6 else ("start", 5)
    return (
        f'{line}<text class="limit-name" x="{place + shift:.1f}" y="{height - BOTTOM - 8:g}" '
        f'text-anchor="{side}">{text}</text>'
    )
