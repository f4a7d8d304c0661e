"""The page of a comparison of serving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from steelyard.report.details import scenario_yaml
from steelyard.report.frame import Page
from steelyard.report.markup import chart_boxes, copied, html_table
from steelyard.report.serving_words import NO_BOTTLENECK, Cell, FigureRow, bottleneck_of, method, rows, sentences, tally
from steelyard.search.compare.comparison import ColumnDifference, ComparedColumn, ServingComparison
from steelyard.search.compare.plots import differences, distributions
from steelyard.words import plural


def serving_comparison_page(found: ServingComparison) -> str:
    """The whole page."""
    seeds = [run.seed for run in max((column.runs for column in found.columns), key=len)]
    others = " and ".join(each.column.name for each in found.differences)
    return Page(
        title=f"{others} against {found.base.name}",
        lede=(_lede(found, seeds),),
        top="".join(_verdict(each, found) for each in found.differences) + _bottlenecks(found) + _notes(found),
        sections={
            "Differences": chart_boxes(differences(found), "one"),
            "Distributions": _distributions(found),
            "Settings": _settings(found),
            "Figures": _figures(found),
            "Scenarios": "".join(map(_scenario, found.columns)),
        },
    ).html()


def _bottlenecks(found: ServingComparison) -> str:
    """What binds each column."""
    told = {column.name: bottleneck_of(column) for column in found.columns}
    said = "; ".join(f"{escape(name)}: {escape(words)}" for name, words in told.items())
    state = "steady" if set(told.values()) == {NO_BOTTLENECK} else "binds"
    return f'<section class="verdict"><p class="{state}"><b>Bottleneck</b> {said}</p></section>'


def _scenario(column: ComparedColumn) -> str:
    if column.given.scenario is None:
        return ""
    return f"<h3>{escape(column.name)}</h3>{copied(scenario_yaml(column.given.scenario))}"


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
            [
                _head(key),
                f'<td class="words">{escape(base)}</td>',
                *(_setting(here.get((name, key)), base) for name in known),
            ]
            for key, base in keys.items()
        ),
        "settings",
    )
    said = [f"<p>The scenario of {escape(name)} or of the base is not known.</p>" for name in unknown]
    return (table if keys else "" if unknown else "<p>The scenarios are equal.</p>") + "".join(said)


def _setting(value: str | None, base: str) -> str:
    if value is None:
        return f'<td class="words same">{escape(base)}</td>'
    return f'<td class="words"><b>{escape(value)}</b></td>'


def _head(text: str) -> str:
    return f'<th scope="row">{escape(text)}</th>'


def _distributions(found: ServingComparison) -> str:
    several = max(len(column.runs) for column in found.columns) > 1
    said = "<p>Lines are means over seeds, bands from the lowest to the highest seed.</p>" if several else ""
    return chart_boxes(distributions(found), "three") + said


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
