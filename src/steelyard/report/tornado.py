"""How an answer swings with each assumption: a table, a chart, a page."""

from __future__ import annotations

from html import escape

from steelyard.plot import Axis, Bar, BarChart
from steelyard.plot.marks import Hue
from steelyard.quoting import printable
from steelyard.report.frame import Page
from steelyard.report.markup import chart_boxes
from steelyard.search.tornado import Swing, Tornado
from steelyard.words import plural

_HUES: tuple[Hue, Hue] = ("1", "2")
_SHOWN = 0.005  # below this the bisection cannot tell


def tornado_lines(found: Tornado) -> list[str]:
    """The answer, and a line for each assumption, the widest swing first."""
    width = max((len(each.name) for each in found.swings), default=0)
    first = f"{found.rate:.3g} requests/s on {plural(found.gpus, 'GPU')}; with one assumption moved:"
    return [first, *(f"  {each.name:{width}}  {_moves(each, found.rate)}" for each in found.swings)]


def _moves(swing: Swing, rate: float) -> str:
    told = (f"{said:>7} {moved:8.3g} ({moved / rate - 1:+6.1%})" for said, moved in swing.rates)
    return "   ".join(told)


def tornado_figures(found: Tornado) -> dict[str, object]:
    """All figures."""
    swings = (
        {"assumption": each.name, "moves": [{"to": said, "rate": rate} for said, rate in each.rates]}
        for each in found.swings
    )
    return {"rate": found.rate, "gpus": found.gpus, "swings": list(swings)}


def tornado_page(found: Tornado, name: str) -> str:
    """The page with the chart."""
    first, *rest = tornado_lines(found)
    items = "".join(f"<li>{escape(printable(line.strip()))}</li>" for line in rest)
    return Page(
        title=f"{name}: what the largest rate depends on",
        lede=(f"{found.rate:.3g} requests/s on {plural(found.gpus, 'GPU')}",),
        top=f'<section class="verdict"><p><b>{escape(first)}</b></p><ul class="told">{items}</ul></section>',
        sections={"Assumptions": chart_boxes([tornado_chart(found)], "one")},
    ).html()


def tornado_chart(found: Tornado) -> BarChart:
    """Bars to either side of the answer, the widest swing first."""
    span = max([_SHOWN, *(each.effect(found.rate) for each in found.swings)])
    bars = []
    for swing in found.swings:
        for hue, (said, rate) in zip(_HUES, swing.rates, strict=False):
            change = rate / found.rate - 1
            told = f"{change:+.1%}" if abs(change) >= _SHOWN else "no change"
            bars.append(Bar(f"{swing.name}: {said}", change if abs(change) >= _SHOWN else 0.0, told, hue))
    along = Axis("relative change of the largest rate", "change", -1.1 * span, 1.1 * span)
    return BarChart("assumptions", "Change of the largest rate", along, tuple(bars))
