"""The files of a sweep: a table, its figures as JSON, and a page with charts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from steelyard.files.writing import write_text
from steelyard.quoting import printable
from steelyard.records.jsontext import readable
from steelyard.records.tables import replace_table
from steelyard.report.frame import Page
from steelyard.report.markup import chart_boxes, cut_note, text_table
from steelyard.search.sweep import REFUSED, Row, SweepPlan
from steelyard.search.sweep_plots import UNITS, ChartGroup, figures_of, place_of, sweep_charts
from steelyard.search.sweep_result import sweep_columns
from steelyard.words import dollars, plural, seconds, significant

TABLE, FIGURES, PAGE = "sweep.parquet", "sweep.json", "sweep.html"
SWEEP_FILES = (TABLE, FIGURES, PAGE)
_MOST_CHARTS = 12  # groups of charts, one for each combination of values of further axes
_MOST_ROWS = 500  # of the page's table


def write_sweep(plan: SweepPlan, rows: Sequence[Row], out: Path) -> None:
    """Write all files of a sweep, in place of earlier ones."""
    replace_table(sweep_columns(plan, rows), out / TABLE)
    write_text(out / FIGURES, readable(sweep_figures(plan, rows)))
    write_text(out / PAGE, sweep_page(plan, rows))


def sweep_figures(plan: SweepPlan, rows: Sequence[Row]) -> dict[str, Any]:
    """Axes and points, for JSON."""
    points = (
        {"at": {axis.key: each.value for axis, each in zip(plan.axes, point, strict=True)}, **row}
        for point, row in zip(plan.points, rows, strict=True)
    )
    return {
        "scenario": plan.name,
        "capacity": plan.capacity,
        "over": {axis.key: list(axis.values) for axis in plan.axes},
        "points": list(points),
    }


def sweep_lines(plan: SweepPlan, rows: Sequence[Row]) -> list[str]:
    """What was found, in a few words: the best point comes first."""
    good = [i for i, row in enumerate(rows) if row.get("carried")]
    lines = [f"no point of {len(rows):,} meets the limits"]
    if good:
        alike = len({rows[i]["gpus"] for i in good}) == 1
        judged = "rate" if plan.capacity and alike else "output_tokens_per_s_per_gpu"
        best = max(good, key=lambda i: (rows[i][judged], -i))
        at = " ".join(f"{axis.key}={axis.labels[place]}" for axis, place in place_of(plan, best))
        rate = f"{rows[best]['rate']:.3g} requests/s, " if plan.capacity else ""
        per = rows[best]["output_tokens_per_s_per_gpu"]
        lines = [f"best of {len(rows):,} points: {at}: {rate}{per:,.0f} output tokens/s per GPU"]
    refused = sum(REFUSED in row for row in rows)
    missed = len(rows) - len(good) - refused
    if missed:
        lines.append(f"{plural(missed, 'point')} cannot carry the load within the limits")
    if refused:
        reason = next(row[REFUSED] for row in rows if REFUSED in row)
        lines.append(f"{plural(refused, 'point')} cannot work; the first: {reason}")
    return lines


def sweep_page(plan: SweepPlan, rows: Sequence[Row]) -> str:
    """The page: charts of the main figures, and a table of all."""
    groups = sweep_charts(plan, rows)
    return Page(
        title=f"{plan.name}: {'capacity' if plan.capacity else 'sweep'} over {', '.join(a.key for a in plan.axes)}",
        lede=(plural(len(rows), "point"),),
        top=_verdict(plan, rows),
        sections={
            "Figures": "".join(map(_group, groups[:_MOST_CHARTS])) + _cut(len(groups)),
            "Points": _table(plan, rows),
        },
    ).html()


def _verdict(plan: SweepPlan, rows: Sequence[Row]) -> str:
    first, *rest = sweep_lines(plan, rows)
    if any(not row.get("carried") and REFUSED not in row for row in rows):
        rest.append("Hollow marks miss a limit, or requests pile up.")
    items = "".join(f"<li>{escape(printable(line))}</li>" for line in rest)
    first = f"<p><b>{escape(printable(first[:1].upper() + first[1:]))}</b></p>"
    return f'<section class="verdict">{first}<ul class="told">{items}</ul></section>'


def _group(group: ChartGroup) -> str:
    title = f"<h3>{escape(printable(group.title))}</h3>" if group.title else ""
    return title + chart_boxes(group.charts, "two")


def _cut(groups: int) -> str:
    return cut_note(min(groups, _MOST_CHARTS), groups, "groups of charts")


def _table(plan: SweepPlan, rows: Sequence[Row]) -> str:
    shown = dict(figures_of(plan))
    head = [*(axis.key for axis in plan.axes), *shown.values(), "carried"]
    cells = []
    for number, row in enumerate(rows[:_MOST_ROWS]):
        at = [axis.labels[place] for axis, place in place_of(plan, number)]
        cells.append(
            [*at, *(_written(name, row.get(name)) for name in shown), "yes" if row.get("carried") else _why(row)]
        )
    return text_table(head, cells) + cut_note(len(cells), len(rows), "points")


def _written(name: str, value: float | None) -> str:
    unit = UNITS.get(name)
    return seconds(value) if unit == "s" else dollars(value) if unit == "usd" else significant(value)


def _why(row: Row) -> str:
    return str(row[REFUSED]) if REFUSED in row else "no"
