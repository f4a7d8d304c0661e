"""A comparison of serving on the console, as JSON and as a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from steelyard.files.writing import write_text
from steelyard.records.jsontext import readable
from steelyard.report.serving_compare_page import serving_comparison_page
from steelyard.report.serving_words import Cell, FigureRow, method, rows, sentences, tally
from steelyard.search.compare.comparison import ColumnDifference, ServingComparison

_WIDTH = 64  # of the table with the base alone, also on narrower terminals: cells must not be cut
_WIDER = 82  # by each further column
_STYLES = {"better": "green", "worse": "red", "other": "cyan", "": ""}


def serving_comparison_json(found: ServingComparison) -> str:
    """All figures."""
    return readable(found.as_dict())


def write_serving_page(found: ServingComparison, page: Path) -> None:
    """The page as one file."""
    write_text(page, serving_comparison_page(found))


def print_serving_comparison(found: ServingComparison, console: Console) -> None:
    """What differs between the scenarios, the differences that matter, and the table of all figures."""
    for difference in found.differences:
        _say(console, f"{difference.column.name} against {found.base.name}", "bold")
        for line in changed_lines(difference):
            _say(console, f"  {line}")
        _say(console, f"  {tally(difference)}", "bold")
        for line, standing in sentences(difference):
            _say(console, f"  {line}", _STYLES[standing])
    _say(console, "")
    width, console.width = console.width, max(console.width, _WIDTH + _WIDER * len(found.differences))
    console.print(_table(found))
    console.width = width
    _say(console, method(found))
    for note in [*found.notes, *(note for each in found.differences for note in each.notes)]:
        _say(console, f"note: {note}", "yellow")


def changed_lines(difference: ColumnDifference) -> Iterator[str]:
    """What differs between the scenarios."""
    if difference.keys is None:
        yield "what differs between the scenarios is not known: a result folder does not hold its own"
    elif not difference.keys:
        yield "the scenarios are equal"
    else:
        yield from map(str, difference.keys)


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style), soft_wrap=True, highlight=False)


def _table(found: ServingComparison) -> Table:
    table = Table(box=None, header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column(Text(found.base.name), justify="right")
    for difference in found.differences:
        table.add_column(Text(difference.column.name), justify="right")
        for heading in ("difference", "relative", "over seeds"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
    group = ""
    for row in rows(found):
        if row.group != group:
            group = row.group
            table.add_section()
            table.add_row(Text(group, style="bold"))
        table.add_row(*_cells(row))
    return table


def _cells(row: FigureRow) -> Iterator[Text]:
    base, *others = row.cells
    yield Text(row.label)
    yield Text(base.value)
    for cell in others:
        yield Text(cell.value)
        yield from map(Text, (cell.difference, cell.relative, cell.interval))
        yield Text(_verdict(cell), style=_STYLES[cell.state] if cell.verdict else "")


def _verdict(cell: Cell) -> str:
    return f"{cell.verdict}, {cell.sure}" if cell.sure else cell.verdict
