"""A chart over two axes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np

from steelyard.plot.figure import NOTHING, Figure
from steelyard.plot.marks import Axis, Marks, Threshold
from steelyard.plot.svg import chart_svg
from steelyard.records.columns import Floats

_HEADROOM = 1.08  # of an axis whose end is not given, above the largest value


@dataclass(frozen=True, eq=False)
class Chart(Figure):
    """Marks over two axes. ``group`` names charts whose cursors move together; ``other`` is the same horizontal axis
    on another scale, for a switch on the page."""

    name: str
    title: str
    x: Axis
    y: Axis
    marks: tuple[Marks, ...]
    limits: tuple[Threshold, ...] = ()
    group: str = ""
    other: Axis | None = None
    note: str = ""
    empty: str = NOTHING

    @property
    def shown(self) -> tuple[Marks, ...]:
        """Marks that have something to draw."""
        return tuple(each for each in self.marks if len(each.x))

    def fitted(self) -> Chart:
        """The same chart with the ends of its axes."""
        across = [value for each in self.shown for value in _ends_of(each.x, each.ends)]
        up = [value for each in self.shown if each.kind not in _FULL for value in _ends_of(each.y, each.low)]
        x = _between(self.x, across, exact=True)
        return replace(self, x=x, y=_between(self.y, up), other=self.other and _between(self.other, across, exact=True))

    def data(self) -> dict[str, Any]:
        """For JSON: what the page's script draws."""
        fitted = self.fitted()
        found: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "x": _axis_data(fitted.x),
            "y": _axis_data(fitted.y),
            "marks": [each.data() for each in self.shown],
            "limits": [{"name": each.name, "at": each.at, "axis": each.axis} for each in self.limits],
            "group": self.group,
            "other": None if fitted.other is None else _axis_data(fitted.other),
            "empty": "" if self.shown else self.empty,
        }
        return {name: value for name, value in found.items() if value}

    def table(self) -> list[list[str | float | None]]:
        """Every mark as a row, under a head."""
        head: list[str | float | None] = ["series", self.x.name, self.y.name, "low", "end"]
        rows = [head]
        for each in self.shown:
            for i, (x, y) in enumerate(zip(each.x.tolist(), each.y.tolist(), strict=True)):
                label = each.labels[i] if each.labels else each.name or self.title
                low, end = (None if column is None else column[i] for column in (each.low, each.ends))
                rows.append([label, self.x.names[int(x)] if self.x.names else x, y, low, end])
        return rows

    def svg(self, width: float = 560.0, height: float = 250.0, *, card: bool = True) -> str:
        """The chart as SVG, on a white card with its title and legend or without."""
        made = self.fitted()
        return chart_svg(made.title if card else "", made.x, made.y, made.shown, made.limits, width, height, made.empty)


_FULL = ("rules", "spans")  # kinds that stand over the whole height


def _ends_of(values: Floats, others: Floats | None) -> list[float]:
    known = np.concatenate([values, values if others is None else others])
    known = known[np.isfinite(known)]
    return [float(known.min()), float(known.max())] if len(known) else []


def _between(axis: Axis, values: list[float], exact: bool = False) -> Axis:
    """An axis with both ends, which differ."""
    if axis.names:
        return replace(axis, low=-0.5, high=len(axis.names) - 0.5)
    known = [value for value in values if isfinite(value) and (value > 0 or not axis.log)]
    low, high = axis.low, axis.high
    if low is None:
        low = min(known, default=1.0) if axis.log else min([0.0, *known]) if not exact else min(known, default=0.0)
        low = low / 1.1 if axis.log else low
    if high is None:
        most = max(known, default=1.0)
        high = most * (1.1 if axis.log else 1.0 if exact else _HEADROOM)
    if not high > low:
        high = low * 2 if axis.log else low + (abs(low) or 1.0)
    return replace(axis, low=low, high=high)


def _axis_data(axis: Axis) -> dict[str, Any]:
    found: dict[str, Any] = {"name": axis.name, "unit": axis.unit, "low": axis.low, "high": axis.high}
    return found | ({"log": True} if axis.log else {}) | ({"names": list(axis.names)} if axis.names else {})
