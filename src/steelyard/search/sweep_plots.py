"""Charts of a sweep: the main figures along one axis, with a line for each value of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from steelyard.plot import Axis, Chart, Marks
from steelyard.plot.marks import HUES
from steelyard.plot.units import Unit
from steelyard.search.grid import GridAxis
from steelyard.search.sweep import Row, SweepPlan

_SIMULATED = {
    "output_tokens_per_s_per_gpu": "Output tokens/s per GPU",
    "ttft_p95": "TTFT p95",
    "tpot_p95": "TPOT p95",
    "usd_per_million_output_tokens": "$ per million output tokens",
}
_CARRIED = {
    "rate": "Largest rate, requests/s",
    "output_tokens_per_s_per_gpu": "Output tokens/s per GPU",
    "usd_per_million_output_tokens": "$ per million output tokens",
}
UNITS: dict[str, Unit] = {"ttft_p95": "s", "tpot_p95": "s", "usd_per_million_output_tokens": "usd"}
_WIDE = 8.0  # ratio of the largest to the smallest place from which on the axis has a logarithmic scale


class ChartGroup(NamedTuple):
    """Charts at fixed values of further axes, which the title names."""

    title: str
    charts: list[Chart]


def figures_of(plan: SweepPlan) -> Mapping[str, str]:
    """Columns to show, and their titles."""
    return _CARRIED if plan.capacity else _SIMULATED


def sweep_charts(plan: SweepPlan, rows: Sequence[Row]) -> list[ChartGroup]:
    """Charts along one axis with a line for each value of another; a group of them for each value of further ones."""
    along = max(range(len(plan.axes)), key=lambda i: (is_numeric(plan.axes[i]), len(plan.axes[i].labels)))
    rest = [i for i in range(len(plan.axes)) if i != along]
    by = min(rest, key=lambda i: (len(plan.axes[i].labels) > len(HUES), i)) if rest else None
    further = [i for i in rest if i != by]
    found = []
    for number, group in enumerate(product(*(range(len(plan.axes[i].labels)) for i in further))):
        fixed = dict(zip(further, group, strict=True))
        title = ", ".join(f"{plan.axes[i].key} = {plan.axes[i].labels[place]}" for i, place in fixed.items())
        names = figures_of(plan)
        charts = [_chart(plan, rows, name, along, by, fixed, f"{name}-{number}") for name in names]
        found.append(ChartGroup(title, charts))
    return found


def _chart(
    plan: SweepPlan, rows: Sequence[Row], name: str, along: int, by: int | None, fixed: Mapping[int, int], chart: str
) -> Chart:
    axis, order, marks = plan.axes[along], _sorted(plan.axes[along]), list[Marks]()
    across, at = _across(axis, order)
    values = range(1) if by is None else range(min(len(plan.axes[by].labels), len(HUES)))
    for value in values:
        own = [rows[_number(plan, {**fixed, along: i, **({} if by is None else {by: value})})] for i in order]
        tops = np.array([np.nan if row.get(name) is None else float(row[name]) for row in own])
        label = "" if by is None else f"{plan.axes[by].key}={plan.axes[by].labels[value]}"
        labels = [" ".join([f"{axis.key}={axis.labels[i]}", label]).strip() for i in order]
        marks.append(Marks("line", at, tops, label, HUES[value]))
        hollow = [not row.get("carried") for row in own]
        marks.append(Marks("dots", at, tops, "", HUES[value], labels=labels, hollow=hollow))
    title = figures_of(plan)[name]
    left_out = 0 if by is None else len(plan.axes[by].labels) - len(values)
    note = f"{left_out} more values of {plan.axes[by].key} are in the table." if by is not None and left_out else ""
    up = Axis(title, UNITS.get(name, "number"), low=0.0)
    return Chart(chart, f"{title}, by {axis.key}", across, up, tuple(marks), note=note)


def _across(axis: GridAxis, order: Sequence[int]) -> tuple[Axis, np.ndarray]:
    """The axis and its places: as numbers if all are and differ, otherwise evenly."""
    if not is_numeric(axis) or len(order) < 2:
        return Axis(axis.key, "number", names=tuple(axis.labels[i] for i in order)), np.arange(len(order), dtype=float)
    at = np.array([float(axis.values[i]) for i in order])
    if at[0] > 0 and at[-1] / at[0] >= _WIDE:
        return Axis(axis.key, "number", at[0] / 1.1, at[-1] * 1.1, log=True), at
    pad = 0.04 * (at[-1] - at[0])
    return Axis(axis.key, "number", float(at[0] - pad), float(at[-1] + pad)), at


def place_of(plan: SweepPlan, number: int) -> list[tuple[GridAxis, int]]:
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


def is_numeric(axis: GridAxis) -> bool:
    """Whether all values of an axis are numbers."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in axis.values)


def _sorted(axis: GridAxis) -> list[int]:
    """Places of an axis, in the order of its numbers if it has numbers."""
    order = list(range(len(axis.labels)))
    return sorted(order, key=lambda i: axis.values[i]) if is_numeric(axis) else order
