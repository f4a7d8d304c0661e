"""HTML elements that several sections of the page share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from steelyard.plot import BarChart, Chart
from steelyard.records.jsontext import inside_html
from steelyard.words import Share, count


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], classes: str = "") -> str:
    """A table of HTML cells. A cell that already is a table element is used as it is."""
    top = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    body = "".join(
        "<tr>" + "".join(c if c.startswith(("<th", "<td")) else f"<td>{c}</td>" for c in row) + "</tr>" for row in rows
    )
    made = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll {classes}" tabindex="0">{made}</div>'


def text_table(head: Sequence[str], rows: Iterable[Sequence[str | Share]]) -> str:
    """A table of plain text with a bar behind each share; empty without rows."""
    cells = [[_cell(each) for each in row] for row in rows]
    return html_table(head, cells) if cells else ""


def _cell(content: str | Share) -> str:
    if isinstance(content, Share) and content.value is not None:
        return bar_cell(str(content), content.value, 1)
    return escape(str(content))


def bar_cell(text: str, value: float, full: float) -> str:
    """A cell with a bar behind its text."""
    share = 100 * value / full if full else 0.0
    return f'<td class="load" style="--share:{share:.1f}%">{escape(text)}</td>'


def cut_note(shown: int, total: int, noun: str) -> str:
    """A note on how many rows were left out; empty if none."""
    return f"<p>The first {count(shown)} of {count(total)} {noun}.</p>" if shown < total else ""


def chart_box(chart: Chart | BarChart) -> str:
    """A figure: its SVG, which is drawn without scripts, and its data, which the page's script draws from."""
    drawn = chart.svg(card=False)
    note = f'<p class="told-below">{escape(chart.note)}</p>' if chart.note else ""
    return (
        f'<figure class="chart" id="fig-{escape(chart.name)}"><div class="head"><figcaption>{escape(chart.title)}'
        f'</figcaption><div class="tools"></div></div><div class="readout" aria-live="polite">{_keys(chart)}</div>'
        f'<div class="plot">{drawn}</div>{note}'
        f'<script type="application/json">{inside_html(chart.data())}</script></figure>'
    )


def _keys(chart: Chart | BarChart) -> str:
    """The legend: names of series, and what is said of each."""
    if isinstance(chart, BarChart):
        return ""
    named = dict.fromkeys((each.name, each.hue, each.said) for each in chart.shown if each.name or each.said)
    return "".join(_key(name, hue, said) for name, hue, said in named)


def _key(name: str, hue: str, said: str) -> str:
    style = f' class="key h{hue}"' if name else ""
    return f"<span{style}>{escape(name)} <b>{escape(said)}</b> </span>"


def chart_boxes(charts: Sequence[Chart | BarChart], layout: str) -> str:
    """Figures beside each other; empty without any."""
    return f'<div class="figures {layout}">{"".join(map(chart_box, charts))}</div>' if charts else ""


def copied(text: str) -> str:
    """Text with a button that copies it."""
    return f'<div class="copied"><pre tabindex="0">{escape(text)}</pre></div>'
