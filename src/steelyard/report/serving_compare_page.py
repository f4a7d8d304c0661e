"""The page of a comparison of serving: one file without scripts that needs no network."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from importlib.metadata import version
from pathlib import Path

import numpy as np

from steelyard.files.reading import read_text
from steelyard.report.markup import html_table
from steelyard.report.overlay import overlaid_quantiles
from steelyard.report.serving_bars import difference_bars
from steelyard.report.serving_words import Cell, FigureRow, method, rows, sentences, tally
from steelyard.report.words import plural
from steelyard.search.compare.comparison import ColumnDifference, ServingComparison
from steelyard.search.compare.runs import SHARES

_TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End to end"}
_COLOURS = 6  # of curves, in the style sheet; further columns begin again


def serving_comparison_page(found: ServingComparison) -> str:
    """The whole page."""
    sections = {
        "Settings": _settings(found),
        "Differences": "".join(_bars(each) for each in found.differences),
        "Distributions": _distributions(found),
        "Figures": _figures(found),
    }
    seeds = [run.seed for run in max((column.runs for column in found.columns), key=len)]
    others = " and ".join(each.column.name for each in found.differences)
    parts = {
        "title": escape(f"{others} against {found.base.name}"),
        "lede": escape(_lede(found, seeds)),
        "nav": "".join(f'<a href="#{title.lower()}">{title}</a>' for title in sections),
        "body": "\n".join(
            [
                "".join(_verdict(each, found) for each in found.differences),
                _notes(found),
                *(
                    f'<section id="{title.lower()}"><h2>{title}</h2>{text}</section>'
                    for title, text in sections.items()
                ),
            ]
        ),
        "version": escape(version("steelyard")),
        "css": _read("page.css"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _read("serving_compare.html"))


def _read(name: str) -> str:
    return read_text(Path(__file__).parent / name)


def _lede(found: ServingComparison, seeds: Sequence[int]) -> str:
    requests = plural(found.base.runs[0].requests, "request")
    span = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    return f"{requests} each, {span}, the same for all"


def _verdict(difference: ColumnDifference, found: ServingComparison) -> str:
    told = "".join(f'<li class="{state}">{escape(line)}</li>' for line, state in sentences(difference))
    names = f"<b>{escape(difference.column.name)}</b> against {escape(found.base.name)}"
    return (
        f'<section class="verdict"><p>{names}: {escape(tally(difference))}.</p><ul class="told">{told}</ul></section>'
    )


def _notes(found: ServingComparison) -> str:
    notes = [*found.notes, *(note for each in found.differences for note in each.notes)]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<section class="notes"><h3>To be noted</h3><ul>{items}</ul></section>' if notes else ""


def _settings(found: ServingComparison) -> str:
    """Keys with other values than the base's: a row for each, a column for each scenario."""
    known = {each.column.name: each.keys for each in found.differences if each.keys is not None}
    keys = {key.key: key.base for changed in known.values() for key in changed}
    here = {(name, key.key): key.here for name, changed in known.items() for key in changed}
    unknown = [each.column.name for each in found.differences if each.keys is None]
    table = html_table(
        ["", found.base.name, *known],
        (
            [_head(key), escape(base), *(_setting(here.get((name, key)), base) for name in known)]
            for key, base in keys.items()
        ),
    )
    said = [f"<p>The scenario of {escape(name)} or of the base is not known.</p>" for name in unknown]
    return (table if keys else "" if unknown else "<p>The scenarios are equal.</p>") + "".join(said)


def _setting(value: str | None, base: str) -> str:
    return f"<td><b>{escape(value)}</b></td>" if value is not None else f'<td class="same">{escape(base)}</td>'


def _head(text: str) -> str:
    return f'<th scope="row">{escape(text)}</th>'


def _bars(difference: ColumnDifference) -> str:
    return (
        f"<figure><figcaption>{escape(difference.column.name)}, relative to the base</figcaption>"
        f'<div class="plot">{difference_bars(difference)}</div></figure>'
    )


def _distributions(found: ServingComparison) -> str:
    names = [column.name for column in found.columns]
    legend = "".join(f'<span class="key k{_colour(i)}">{escape(name)}</span>' for i, name in enumerate(names))
    boxes = "".join(
        f'<figure><figcaption>{title}</figcaption><div class="readout">{legend}</div>'
        f'<div class="plot">{_overlaid(found, metric)}</div></figure>'
        for metric, title in _TITLES.items()
    )
    return f'<div class="figures three">{boxes}</div><p>Mean over seeds at each share of requests, up to p99.</p>'


def _overlaid(found: ServingComparison, metric: str) -> str:
    curves = [
        np.mean([run.quantiles[metric] for run in column.runs if run.quantiles[metric]] or [[]], axis=0)
        for column in found.columns
    ]
    if not all(len(curve) for curve in curves):
        return '<div class="empty">no such times</div>'
    return overlaid_quantiles(curves, SHARES, [float(np.interp(0.99, SHARES, curve)) for curve in curves])


def _colour(place: int) -> int:
    return place % _COLOURS + 1


def _figures(found: ServingComparison) -> str:
    head = ["", found.base.name]
    for each in found.differences:
        head += [each.column.name, "difference", "relative", "over seeds", ""]
    return html_table(head, _rows(list(rows(found)), len(head))) + f"<p>{escape(method(found))}</p>"


def _rows(found: Sequence[FigureRow], width: int) -> Iterator[list[str]]:
    group = ""
    for row in found:
        if row.group != group:
            group = row.group
            yield [f'<th scope="colgroup" class="group-head" colspan="{width}">{escape(group)}</th>']
        base, *others = row.cells
        yield [_head(row.label), _value(base), *(cell for other in others for cell in _cells(other))]


def _value(cell: Cell) -> str:
    return (
        f'<td class="{cell.state}">{escape(cell.value)}</td>' if not cell.verdict else f"<td>{escape(cell.value)}</td>"
    )


def _cells(cell: Cell) -> Iterator[str]:
    yield _value(cell)
    for text in (cell.difference, cell.relative, cell.interval):
        yield escape(text)
    sure = f" <small>{escape(cell.sure)}</small>" if cell.sure else ""
    yield f'<td class="judged {cell.state if cell.verdict else ""}">{escape(cell.verdict)}{sure}</td>'
