"""A sweep from Python: `sweep` and its result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.lazy import late
from steelyard.plot import Panels
from steelyard.records.columns import Column
from steelyard.records.jsontext import compact
from steelyard.records.tables import to_arrow, to_pandas, to_polars
from steelyard.scenario.load import ScenarioFile
from steelyard.scenario.overrides import parse_override
from steelyard.search.grid import parse_axes
from steelyard.search.sweep import REFUSED, Row, SweepPlan, sweep_rows
from steelyard.search.sweep_plots import is_numeric, sweep_charts

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, eq=False)
class SweepResult:
    """The points of a grid, one row each in the order of the grid, the last axis changing fastest."""

    plan: SweepPlan
    rows: Sequence[Row] = field(repr=False)

    @property
    def columns(self) -> dict[str, Column]:
        """A column for each axis and each figure. What a point does not have is NaN, or empty text."""
        return sweep_columns(self.plan, self.rows)

    def plot(self) -> Panels:
        """Charts of the main figures along one axis, with a line for each value of another."""
        return Panels(tuple(chart for group in sweep_charts(self.plan, self.rows) for chart in group.charts))

    def to_arrow(self) -> pyarrow.Table:
        """The points as an Arrow table."""
        return to_arrow(self.columns)

    def to_pandas(self) -> Any:
        """The points as a pandas frame."""
        return to_pandas(self.columns)

    def to_polars(self) -> Any:
        """The points as a polars frame."""
        return to_polars(self.columns)

    def _repr_html_(self) -> str:
        return late("steelyard.report.notebook", "sweep_html")(self)


def sweep(
    scenario: str | PathLike[str],
    over: Mapping[str, Sequence[Any]],
    overrides: Sequence[str] = (),
    *,
    capacity: bool = False,
    journal: str | PathLike[str] | None = None,
    workers: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> SweepResult:
    """Simulate every combination of values, such as ``sweep("a.yaml", {"fleet.tp": [1, 2, 4]})``.

    ``overrides`` change all points, as ``--set`` does. With ``capacity`` each point's largest rate within the limits is
    found, instead of a simulation of its own rate. ``journal`` is a file that keeps every point: a sweep that was
    stopped goes on. ``workers`` are processes; without, points run in this one.
    """
    axes = parse_axes([f"{key}={','.join(map(_written, values))}" for key, values in over.items()])
    changes = tuple(parse_override(text) for text in overrides)
    plan = SweepPlan(ScenarioFile(Path(scenario)), changes, axes, capacity)
    return SweepResult(plan, sweep_rows(plan, None if journal is None else Path(journal), workers, progress))


def _written(value: Any) -> str:
    """A value as ``--over`` has it."""
    return value if isinstance(value, str) and value.replace("-", "").isalnum() else compact(value)


def sweep_columns(plan: SweepPlan, rows: Sequence[Row]) -> dict[str, np.ndarray]:
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
    if is_numeric(plan.axes[i]):
        return np.array(values, dtype=np.int64 if all(isinstance(each, int) for each in values) else np.float64)
    return np.array([each if isinstance(each, str) else compact(each) for each in values], dtype=object)


def _column(found: Sequence[Any]) -> np.ndarray:
    known = [each for each in found if each is not None]
    if known and all(isinstance(each, bool) for each in known):
        return np.array([bool(each) for each in found])
    if any(isinstance(each, str) for each in known):
        return np.array([each or "" for each in found], dtype=object)
    return np.array([math.nan if each is None else float(each) for each in found])
