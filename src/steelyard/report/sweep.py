"""The files of a sweep: a table, its figures as JSON, and a page with charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from steelyard.files.writing import write_text
from steelyard.records.jsontext import compact, readable
from steelyard.records.tables import replace_table
from steelyard.report.lines_figure import COLOURS, Chart, ChartLine, chart_svg, legend
from steelyard.report.markup import cut_note, text_table
from steelyard.report.words import plural, significant
from steelyard.search.grid import GridAxis
from steelyard.search.sweep import REFUSED, Row, SweepPlan

TABLE, FIGURES, PAGE = "sweep.parquet", "sweep.json", "sweep.html"
SWEEP_FILES = (TABLE, FIGURES, PAGE)
_SIMULATED = {
    "output_tokens_per_s_per_gpu": "Output tokens/s per GPU",
    "ttft_p95": "p95 time to first token, s",
    "tpot_p95": "p95 time per output token, s",
    "usd_per_million_output_tokens": "$ per million output tokens",
}
_CARRIED = {
    "rate": "Largest rate, requests/s",
    "output_tokens_per_s_per_gpu": "Output tokens/s per GPU",
    "usd_per_million_output_tokens": "$ per million output tokens",
}
_MOST_CHARTS = 12  # groups of charts, one for each combination of values of further axes
_MOST_ROWS = 500  # of the page's table
_STYLE = (
    "body{font:15px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,Helvetica,Arial,sans-serif;color:#17212b;"
    "max-width:1240px;margin:2rem auto;padding:0 1rem}h1{font-size:1.4rem}h2{font-size:1.05rem;margin:1.6rem 0 .3rem}"
    ".charts{display:flex;flex-wrap:wrap;gap:10px}.charts svg{border:1px solid #e4e8ec;border-radius:8px}"
    ".legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:4px 16px}.legend i{display:inline-block;"
    "width:12px;height:12px;border-radius:3px;margin-right:6px}.scroll{overflow-x:auto}table{border-collapse:collapse;"
    "font-size:13px}th,td{padding:3px 10px;text-align:right;border-bottom:1px solid #e4e8ec;white-space:nowrap}"
    "p{max-width:75ch}"
)


def write_sweep(plan: SweepPlan, rows: Sequence[Row], out: Path) -> None:
    """Write all files of a sweep, in place of earlier ones."""
    replace_table(_columns(plan, rows), out / TABLE)
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
        at = " ".join(f"{axis.key}={axis.labels[place]}" for axis, place in _place(plan, best))
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
    title = f"{plan.name}: {'capacity' if plan.capacity else 'sweep'} over {', '.join(a.key for a in plan.axes)}"
    said = "".join(f"<p>{escape(line)}</p>" for line in sweep_lines(plan, rows))
    hollow = any(not row.get("carried") and REFUSED not in row for row in rows)
    note = "<p>Hollow marks miss a limit, or requests pile up.</p>" if hollow else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{said}{note}{_charts(plan, rows)}"
        f"<h2>All points</h2>{_table(plan, rows)}</body></html>\n"
    )


def _charts(plan: SweepPlan, rows: Sequence[Row]) -> str:
    """Charts along one axis with a line for each value of another; a group of them for each value of further ones."""
    along = max(range(len(plan.axes)), key=lambda i: (_is_numeric(plan.axes[i]), len(plan.axes[i].labels)))
    rest = [i for i in range(len(plan.axes)) if i != along]
    by = min(rest, key=lambda i: (len(plan.axes[i].labels) > len(COLOURS), i)) if rest else None
    further = [i for i in rest if i != by]
    groups = list(product(*(range(len(plan.axes[i].labels)) for i in further)))
    parts = []
    if by is not None:
        parts.append(legend(plan.axes[by].labels[: len(COLOURS)], plan.axes[by].key))
        parts.append(cut_note(len(COLOURS), len(plan.axes[by].labels), f"values of {escape(plan.axes[by].key)}"))
    for group in groups[:_MOST_CHARTS]:
        fixed = dict(zip(further, group, strict=True))
        if fixed:
            named = ", ".join(f"{plan.axes[i].key} = {plan.axes[i].labels[place]}" for i, place in fixed.items())
            parts.append(f"<h2>{escape(named)}</h2>")
        charts = (_chart(plan, rows, name, along, by, fixed) for name in (_CARRIED if plan.capacity else _SIMULATED))
        parts.append(f'<div class="charts">{"".join(charts)}</div>')
    return "".join([*parts, cut_note(_MOST_CHARTS, len(groups), "groups of charts")])


def _chart(
    plan: SweepPlan, rows: Sequence[Row], name: str, along: int, by: int | None, fixed: Mapping[int, int]
) -> str:
    axis = plan.axes[along]
    order = _sorted(axis)
    lines = []
    for value in range(1 if by is None else min(len(plan.axes[by].labels), len(COLOURS))):
        places = [{**fixed, along: place, **({} if by is None else {by: value})} for place in order]
        own = [rows[_number(plan, place)] for place in places]
        label = "" if by is None else plan.axes[by].labels[value]
        lines.append(ChartLine(label, [row.get(name) for row in own], [not row.get("carried") for row in own]))
    title = (_CARRIED if plan.capacity else _SIMULATED)[name]
    return chart_svg(Chart(title, axis.key, [axis.labels[place] for place in order], lines))


def _table(plan: SweepPlan, rows: Sequence[Row]) -> str:
    shown = dict(_CARRIED if plan.capacity else _SIMULATED)
    head = [*(axis.key for axis in plan.axes), *shown.values(), "carried"]
    cells = []
    for number, row in enumerate(rows[:_MOST_ROWS]):
        at = [axis.labels[place] for axis, place in _place(plan, number)]
        cells.append([*at, *(significant(row.get(name)) for name in shown), "yes" if row.get("carried") else _why(row)])
    return text_table(head, cells) + cut_note(len(cells), len(rows), "points")


def _why(row: Row) -> str:
    return str(row[REFUSED]) if REFUSED in row else "no"


def _place(plan: SweepPlan, number: int) -> list[tuple[GridAxis, int]]:
    """Each axis, and the place on it of a point."""
    found = []
    for axis in reversed(plan.axes):
        number, place = divmod(number, len(axis.labels))
        found.append((axis, place))
    return found[::-1]


def _number(plan: SweepPlan, places: Mapping[int, int]) -> int:
    """The number of a point by its place on each axis."""
    number = 0
    for i, axis in enumerate(plan.axes):
        number = number * len(axis.labels) + places[i]
    return number


def _is_numeric(axis: GridAxis) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in axis.values)


def _sorted(axis: GridAxis) -> list[int]:
    """Places of an axis, in the order of its numbers if it has numbers."""
    order = list(range(len(axis.labels)))
    return sorted(order, key=lambda i: axis.values[i]) if _is_numeric(axis) else order


def _columns(plan: SweepPlan, rows: Sequence[Row]) -> dict[str, np.ndarray]:
    """A column for each axis and each figure. What a point does not have is NaN, or empty text."""
    names = {name: row[name] for row in rows for name in row}
    columns = {axis.key: _axis_column(plan, i) for i, axis in enumerate(plan.axes)}
    for name in (name for name in names if name != REFUSED):
        found = [row.get(name) for row in rows]
        columns[name] = _column(found)
    columns[REFUSED] = np.array([row.get(REFUSED, "") for row in rows], dtype=object)
    return columns


def _axis_column(plan: SweepPlan, i: int) -> np.ndarray:
    values = [point[i].value for point in plan.points]
    if _is_numeric(plan.axes[i]):
        return np.array(values, dtype=np.int64 if all(isinstance(each, int) for each in values) else np.float64)
    return np.array([each if isinstance(each, str) else compact(each) for each in values], dtype=object)


def _column(found: Sequence[Any]) -> np.ndarray:
    known = [each for each in found if each is not None]
    if known and all(isinstance(each, bool) for each in known):
        return np.array([bool(each) for each in found])
    if any(isinstance(each, str) for each in known):
        return np.array([each or "" for each in found], dtype=object)
    return np.array([math.nan if each is None else float(each) for each in found])
