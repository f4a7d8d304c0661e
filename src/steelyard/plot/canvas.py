"""What all drawings of charts share: sizes, style, scales."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from math import log

from steelyard.plot.marks import Axis
from steelyard.quoting import shortened

LEFT, RIGHT, TOP, BOTTOM = 48.0, 14.0, 8.0, 24.0  # around a plot
HEAD, LEGEND, LETTER = 26.0, 18.0, 6.4  # heights above a plot, and the width of a letter
_TITLE_LETTER = 7.8
_COLOURS = {
    "1": "#1f6fb2",
    "2": "#c2590a",
    "3": "#0f7f6c",
    "4": "#8a3fa0",
    "5": "#a67c00",
    "6": "#52606d",
    "good": "#0b7a4b",
    "bad": "#b3261e",
    "soft": "#aab4be",
}
_STYLE = (
    "text{font:11.5px system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;fill:#52606d}"
    ".title{font-size:14px;font-weight:600;fill:#17212b}.grid{stroke:#e4e9ed;fill:none}.axis{stroke:#aab4be;fill:none}"
    ".line{fill:none;stroke-width:1.8;stroke-linejoin:round}.fill{fill-opacity:.16;stroke:none}"
    ".band{fill-opacity:.22;stroke:none}.spans{fill-opacity:.14;stroke:none}.bars,.steps.fill{stroke:none}"
    ".dots{fill:none;stroke-width:5;stroke-linecap:round}.rules{fill:none;stroke-width:1.4;stroke-dasharray:4 3}"
    ".ring{fill:#fff;stroke-width:1.6}.limit{stroke:#b3261e;stroke-dasharray:4 3;fill:none}"
    ".limit-name{fill:#b3261e}.whisker{stroke:#17212b;stroke-width:1.2;fill:none}.shade{fill:#eef1f4}"
    + "".join(f".h{hue}{{--hue:{colour};stroke:{colour};fill:{colour}}}" for hue, colour in _COLOURS.items())
    + ".line,.dots,.rules{fill:none}.fill,.band,.spans,.bars{stroke:none}.ring{fill:#fff}"
)
Scale = Callable[[float], float]


def opening(width: float, height: float, title: str) -> str:
    """The beginning of an SVG: with a title also a white card and the style."""
    size = f'viewBox="0 0 {width:g} {height:g}"'
    if not title:
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} width="{width:g}" role="img" aria-label="{escape(title)}">'
        f"<style>{_STYLE}</style>"
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="#fff" stroke="none"/>'
        f'<text class="title" x="12" y="19">{escape(shortened(title, max(8, int(width / _TITLE_LETTER))))}</text>'
    )


def scale(axis: Axis, start: float, end: float) -> Scale:
    """From values to places."""
    assert axis.low is not None and axis.high is not None
    first, last = axis.low, axis.high
    if axis.log:
        low, slope = log(first), (end - start) / (log(last) - log(first))
        return lambda value: start + (log(max(value, first)) - low) * slope
    slope = (end - start) / (last - first)
    return lambda value: start + (value - first) * slope
