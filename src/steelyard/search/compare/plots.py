"""Charts of a comparison of serving: differences with their intervals, and distributions over each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steelyard.plot import Axis, Bar, BarChart, Chart, Marks
from steelyard.plot.marks import HUES, Hue
from steelyard.search.compare.comparison import ColumnDifference, ComparedColumn, ServingComparison
from steelyard.search.compare.figures import BY_NAME
from steelyard.search.compare.judging import RELEVANT, Judged
from steelyard.search.compare.runs import SHARES

_TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End to end"}
_SPANS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0)  # to either side; what lies beyond the last is cut there
_P99 = 0.99  # where curves end: the last per cent would squeeze the rest
_HUES: dict[str, Hue] = {"better": "good", "worse": "bad", "higher": "1", "lower": "1"}


def differences(found: ServingComparison) -> list[BarChart]:
    """For each column its differences from the base."""
    return [_bars(each, place) for place, each in enumerate(found.differences)]


def _bars(difference: ColumnDifference, place: int) -> BarChart:
    shown = [each for each in difference.figures if each.relative is not None]
    most = max((abs(each.relative or 0.0) for each in shown), default=0.0)
    span = next((span for span in _SPANS if most <= 0.95 * span), _SPANS[-1])
    bars = tuple(
        Bar(
            BY_NAME[each.name].label,
            each.relative or 0.0,
            f"{(each.relative or 0.0) * 100:+.1f} %, {each.verdict}",
            _hue(each),
            interval=each.relative_interval,
        )
        for each in shown
    )
    title = f"{difference.column.name}, relative to the base"
    along = Axis("relative difference", "change", -span, span)
    return BarChart(
        f"difference-{place}",
        title,
        along,
        bars,
        band=(-RELEVANT, RELEVANT),
        note=f"Cut at {span:.0%}: the figures beside the bars are whole." if most > span else "",
        empty="No relative differences.",
    )


def _hue(each: Judged) -> Hue:
    return _HUES.get(each.verdict, "soft")


def distributions(found: ServingComparison) -> list[Chart]:
    """Times at each share of requests up to p99: the mean over seeds, and the band from the lowest to the highest."""
    return [_overlaid(found.columns, metric, title) for metric, title in _TITLES.items()]


def _overlaid(columns: Sequence[ComparedColumn], metric: str, title: str) -> Chart:
    shown = _P99 >= SHARES
    shares, marks = SHARES[shown], list[Marks]()
    for place, column in enumerate(columns):
        hue = HUES[place % len(HUES)]
        curves = np.array([run.quantiles[metric] for run in column.runs if run.quantiles[metric]])
        if not len(curves):
            continue
        mean = curves.mean(0)[shown]
        if len(curves) > 1:
            marks.append(_band(curves.min(0)[shown], curves.max(0)[shown], shares, hue))
        marks.append(Marks("line", mean, shares, column.name, hue))
    up = Axis("share of requests", "share", 0.0, 1.0)
    return Chart(metric, f"{title}, up to p99", Axis(title, "s", low=0.0), up, tuple(marks))


def _band(lows: np.ndarray, highs: np.ndarray, shares: np.ndarray, hue: Hue) -> Marks:
    """Between the quickest and the slowest seed at each share."""
    at = np.unique(np.concatenate([lows, highs]))
    return Marks("band", at, np.interp(at, lows, shares), "", hue, low=np.interp(at, highs, shares))
