"""Horizontal bars, one below the other, each with a name and a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from steelyard.plot.bar_svg import bars_svg
from steelyard.plot.figure import NOTHING, Figure
from steelyard.plot.marks import Axis, Bar


@dataclass(frozen=True, eq=False)
class BarChart(Figure):
    """Bars along one axis. ``band`` is a range that is shaded, such as differences too small to matter."""

    name: str
    title: str
    x: Axis
    bars: tuple[Bar, ...]
    band: tuple[float, float] | None = None
    note: str = ""
    empty: str = NOTHING

    @property
    def ends(self) -> tuple[float, float]:
        """Both ends of the axis."""
        values = [0.0, *(each.value for each in self.bars), *(each.start for each in self.bars)]
        low = min(values) if self.x.low is None else self.x.low
        high = max(values) if self.x.high is None else self.x.high
        return (low, high) if high > low else (low, low + 1.0)

    def data(self) -> dict[str, Any]:
        """For JSON: what the page's script draws."""
        low, high = self.ends
        return {
            "name": self.name,
            "title": self.title,
            "x": {"name": self.x.name, "unit": self.x.unit, "low": low, "high": high},
            "bars": [each.data() for each in self.bars],
            **({"band": list(self.band)} if self.band else {}),
            **({} if self.bars else {"empty": self.empty}),
        }

    def table(self) -> Sequence[Sequence[str | float | None]]:
        """A row for each bar, under a head."""
        rows: list[list[str | float | None]] = [["name", self.x.name, "from", "low", "high"]]
        for each in self.bars:
            low, high = each.interval or (None, None)
            rows.append([each.label, each.value, each.start, low, high])
        return rows

    def svg(self, width: float = 560.0, *, card: bool = True) -> str:
        """The bars as SVG, on a white card with the title or without."""
        return bars_svg(self.title if card else "", self.x, self.ends, self.bars, self.band, width)
