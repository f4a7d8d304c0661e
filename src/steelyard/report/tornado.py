"""How an answer swings with each assumption: a table, a chart, a page."""

from __future__ import annotations

from html import escape

from steelyard.report.words import plural
from steelyard.search.tornado import Swing, Tornado

_ROW, _LEFT, _PLOT, _RIGHT, _TOP = 24.0, 190.0, 430.0, 90.0, 62.0
_DOWN, _UP = "#2b5d9b", "#c2590a"
_STYLE = (
    "text{font:11px system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;fill:#52606d}"
    ".h{font-size:15px;font-weight:600;fill:#17212b}.r{text-anchor:end}.m{text-anchor:middle}.a{stroke:#52606d}"
)
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
    """A page with the chart alone, which can be read without anything else."""
    title = f"{name}: what the largest rate depends on"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        "<style>body{margin:2rem auto;max-width:760px}</style></head>"
        f"<body>{tornado_svg(found, title)}</body></html>\n"
    )


def tornado_svg(found: Tornado, title: str) -> str:
    """Bars to either side of the answer; equal bytes for equal figures."""
    most = max([_SHOWN, *(each.effect(found.rate) for each in found.swings)])
    width, height = _LEFT + _PLOT + _RIGHT, _TOP + _ROW * len(found.swings) + 16
    middle = _LEFT + _PLOT / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>',
        f'<text class="h" x="12" y="22">{escape(title)}</text>',
        f'<text class="m" x="{middle:g}" y="44">{found.rate:.3g} requests/s</text>',
    ]
    for place, swing in enumerate(found.swings):
        y = _TOP + _ROW * place
        parts.append(f'<text class="r" x="{_LEFT - 10:g}" y="{y + 15:g}">{escape(swing.name)}</text>')
        changes = [(said, rate / found.rate - 1) for said, rate in swing.rates if abs(rate / found.rate - 1) >= _SHOWN]
        same = len({change > 0 for _, change in changes}) < len(changes)  # to one side: one below the other
        for number, (said, rate) in enumerate(swing.rates):
            thick = (_ROW - 4) / 2 if same else _ROW - 8
            top = y + 2 + number * thick if same else y + 4
            parts += _bar(top, thick, rate / found.rate - 1, most, said, _DOWN if number == 0 else _UP)
    axis = f'<line class="a" x1="{middle:g}" x2="{middle:g}" y1="{_TOP - 10:g}" y2="{height - 8:g}"/>'
    return "\n".join([*parts, axis, "</svg>"])


def _bar(top: float, height: float, change: float, most: float, said: str, colour: str) -> list[str]:
    """A bar from the middle, with what was moved and the change at its end."""
    middle, half = _LEFT + _PLOT / 2, (_PLOT - 170) / 2
    length = half * abs(change) / most
    left = middle - length if change < 0 else middle
    x, style = (left - 5, "r") if change < 0 else (middle + length + 5, "")
    if abs(change) < _SHOWN:
        return []
    return [
        f'<rect x="{left:.1f}" y="{top:g}" width="{length:.1f}" height="{height:g}" rx="2" fill="{colour}"/>',
        f'<text class="{style}" x="{x:.1f}" y="{top + height / 2 + 4:g}">{escape(said)}: {change:+.1%}</text>',
    ]
