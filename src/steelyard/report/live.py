"""Live runs on the console and as a page: steps, lost engines, and how the reward rose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version
from typing import Any

import numpy as np

from steelyard.live.figures import LiveFigures
from steelyard.plot import Axis, Chart, Marks
from steelyard.plot.marks import HUES
from steelyard.quoting import printable
from steelyard.report.frame import Page
from steelyard.report.markup import text_table

Curve = Sequence[tuple[float, float]]
"""Points of a line: (seconds, value)."""
Table = Sequence[Sequence[str]]


def curves_chart(name: str, title: str, curves: Mapping[str, Curve], up: str) -> Chart:
    """Lines over the seconds of a run, one for each name."""
    marks = []
    for place, (label, curve) in enumerate(curves.items()):
        at, values = np.array(curve, dtype=np.float64).reshape(-1, 2).T
        marks.append(Marks("line", at, values, label, HUES[place % len(HUES)]))
    return Chart(name, title, Axis("time", "clock", low=0.0), Axis(up, "number", low=0.0), tuple(marks))


def progress_curve(found: LiveFigures) -> Curve:
    """Tokens that were trained on by each second."""
    total, points = 0, [(0.0, 0.0)]
    for step in found.steps:
        total += step.tokens
        points.append((step.synced, float(total)))
    return points


def live_page(title: str, verdict: str, sections: Mapping[str, str], tables: Mapping[str, Table]) -> str:
    """A page: a verdict, sections, then tables whose first row is the head."""
    top = f'<section class="verdict"><p>{escape(printable(verdict))}</p></section>'
    shown = {name: text_table(rows[0], rows[1:]) for name, rows in tables.items() if len(rows) > 1}
    made = f"Run by Steelyard {version('steelyard')}."
    return Page(title=title, lede=("live run",), top=top, sections={**sections, **shown}, made=made).html()


def step_rows(found: LiveFigures) -> list[list[str]]:
    """Steps as a table."""
    head = ["step", "samples complete, s", "trained, s", "engines have weights, s", "samples", "tokens"]
    return [
        head,
        *(
            [
                str(each.step),
                f"{each.complete:,.1f}",
                f"{each.trained:,.1f}",
                f"{each.synced:,.1f}",
                f"{each.samples:,}",
                f"{each.tokens:,}",
            ]
            for each in found.steps
        ),
    ]


def recovery_rows(found: LiveFigures, speed: float) -> list[list[str]]:
    """Lost engines as a table, in seconds of the machine's clock."""
    head = ["engine", "lost at, s of the run", "up again after, s of this machine"]
    return [
        head,
        *(
            [str(each.replica), f"{each.at:,.1f}", "never" if each.seconds is None else f"{each.seconds / speed:.2f}"]
            for each in found.recoveries
        ),
    ]


def change_rows(found: LiveFigures, simulated: Mapping[str, Any]) -> list[list[str]]:
    """Changes of plan as a table, live and simulated."""
    head = ["change of plan", "after step", "outcome", "took, s", "predicted gain of a step, s", "realised, s"]
    rows = [head]
    for each in found.changes:
        gains = [_seconds(each.predicted), _seconds(each.realised)]
        rows.append([f"live: {each.what}", str(each.step), each.outcome, _seconds(each.seconds), *gains])
    for change in simulated.get("reallocations", ()):
        gains = [_seconds(change["predicted"]), _seconds(change["realised"])]
        step = [str(change["step"]), change["outcome"], _seconds(change["seconds"])]
        rows.append([f"simulated: {change['what']}", *step, *gains])
    return rows


def _seconds(value: float | None) -> str:
    return "not known" if value is None else f"{value:,.1f}"
