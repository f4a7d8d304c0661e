"""Charts of a search: `SearchResult.plot`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from steelyard.errors import UserError
from steelyard.plot import Axis, Bar, BarChart, Chart, Marks
from steelyard.plot.marks import HUES
from steelyard.words import dollars, plural, significant

if TYPE_CHECKING:
    from steelyard.search.search import FleetChoice, Level, SearchResult


class SearchPlots:
    """Charts of a search, level by level of its limits. Each shows itself in a notebook and has ``save(path)``."""

    def __init__(self, found: SearchResult) -> None:
        self._found = found

    def frontier(self, level: str | None = None) -> Chart:
        """Price against rate of the fleets that were found; the line joins those that no other beats in both."""
        own = self._level(level)
        names = list(dict.fromkeys(each.architecture for each in own.choices))
        best = own.frontier()
        line = np.array([(each.usd_per_hour, each.rate) for each in best]).reshape(-1, 2)
        marks = [Marks("line", line[:, 0], line[:, 1], "best at its price", "soft")]
        for place, name in enumerate(names):
            fleets = [each for each in own.choices if each.architecture == name]
            at = np.array([(each.usd_per_hour, each.rate) for each in fleets])
            told = [f"{each.name} ({plural(each.gpus, 'GPU')})" for each in fleets]
            marks.append(Marks("dots", at[:, 0], at[:, 1], name, HUES[place % len(HUES)], labels=told))
        prices = [each.usd_per_hour for each in own.choices]
        along = Axis("US dollars an hour", "usd", 0.0, 1.08 * max(prices, default=1.0))
        return Chart(
            self._name("frontier", own),
            "Requests/s by price",
            along,
            _RATE,
            tuple(marks),
            empty=_NONE,
        )

    def fleets(self, level: str | None = None) -> BarChart:
        """The rate that the best fleet of each architecture carries, the best by the search's objective first."""
        own = self._level(level)
        bars = tuple(
            Bar(each.architecture, each.rate, _told(each), HUES[place % len(HUES)])
            for place, each in enumerate(own.by_architecture())
        )
        title = "Requests/s of the best of each architecture"
        return BarChart(self._name("architectures", own), title, _RATE, bars, empty=_NONE)

    def _level(self, name: str | None) -> Level:
        levels = self._found.levels
        if name is None:
            return levels[0]
        own = next((each for each in levels if each.name == name), None)
        if own is None:
            known = ", ".join(repr(each.name) for each in levels)
            raise UserError(f"plot: no level of the limits is called {name!r}; choose from {known}")
        return own

    def _name(self, chart: str, level: Level) -> str:
        return f"{chart}-{self._found.levels.index(level)}"


_RATE = Axis("requests per second", "number", low=0.0)
_NONE = "No candidate meets the limits at any rate."


def _told(each: FleetChoice) -> str:
    return f"{significant(each.rate)}: {plural(each.gpus, 'GPU')}, {dollars(each.usd_per_hour)}/h"
