"""Several charts together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steelyard.plot.bars import BarChart
from steelyard.plot.chart import Chart
from steelyard.plot.figure import Figure
from steelyard.plot.svg import stacked


@dataclass(frozen=True, eq=False)
class Panels(Figure):
    """Several charts, one below the other."""

    charts: tuple[Chart | BarChart, ...]

    def svg(self) -> str:
        """All charts in one SVG."""
        return stacked([each.svg() for each in self.charts])

    def table(self) -> Sequence[Sequence[str | float | None]]:
        """All rows, each chart's under a head of its own."""
        return [row for each in self.charts for row in each.table()]

    def _repr_html_(self) -> str:
        return f'<div style="display:flex;flex-wrap:wrap;gap:8px">{"".join(each.svg() for each in self.charts)}</div>'
