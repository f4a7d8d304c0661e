"""The page of a live run on emulated engines: what its GPUs did, what was decided, and its simulation beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from steelyard.balance.log import Row
from steelyard.live.explain import Explained, explanations
from steelyard.live.figures import LiveFigures
from steelyard.live.fleet_history import FleetHistory
from steelyard.posttrain.run import Driven
from steelyard.report.live import (
    Curve,
    change_rows,
    curves_chart,
    live_page,
    progress_curve,
    recovery_rows,
    step_rows,
)
from steelyard.report.live_timeline import engines_chart, roles_chart
from steelyard.report.markup import chart_boxes, cut_note

_TOLD = ("plan", "replica", "pool")  # kinds of decisions that the page tells of
_MOST_TOLD = 200  # sentences; chosen


def run_page(
    name: str, speed: float, found: LiveFigures, history: FleetHistory, simulated: Driven, log: Iterator[Row]
) -> str:
    """The whole page."""
    verdict = (
        f"{len(found.steps)} steps on {history.gpus} emulated GPUs in {found.seconds:,.0f} s of the run, {speed:g} "
        "times as fast as real time. Each part was a process. The same core decides here and in simulations."
    )
    if found.changes:
        verdict += f" The planner thinks in real time: its time counts {speed:g} times as much as in a real run."
    curves = {"live": progress_curve(found), "simulated": _simulated_curve(simulated)}
    trained = curves_chart("tokens", "Tokens trained on", curves, "tokens")
    sections = {
        "GPUs": cards(_headlines(found, simulated.summary))
        + chart_boxes([roles_chart(history), engines_chart(history), trained], "one"),
        "Decisions": _told(log),
    }
    tables = {
        "Beside its simulation": beside_rows(found, simulated.summary),
        "Changes of plan": change_rows(found, simulated.summary),
        "Recoveries": recovery_rows(found, speed),
        "Steps": step_rows(found),
    }
    return live_page(name, verdict, sections, tables)


def beside_rows(found: LiveFigures, simulated: Mapping[str, Any]) -> list[list[str]]:
    """A run beside its simulation."""
    rows = [["", "live", "simulated", "difference"]]
    for name, live in (("seconds", found.seconds), ("tokens_per_second", found.tokens_per_second)):
        expected = float(simulated[name])
        said = name.replace("_", " ")
        rows.append([said, f"{live:,.1f}", f"{expected:,.1f}", f"{live / expected - 1:+.1%}"])
    return rows


def cards(rows: Sequence[tuple[str, str]]) -> str:
    """Headline figures: a value and what it is."""
    made = "".join(
        f'<article class="card"><h3>{escape(what)}</h3><p class="figure">{escape(value)}</p></article>'
        for value, what in rows
    )
    return f'<div class="cards">{made}</div>'


def _headlines(found: LiveFigures, simulated: Mapping[str, Any]) -> list[tuple[str, str]]:
    apart = found.seconds / float(simulated["seconds"]) - 1
    done = [each for each in found.changes if each.outcome == "done"]
    back = [each for each in found.recoveries if each.seconds is not None]
    return [
        (f"{found.tokens_per_second:,.0f}", "tokens trained on per second"),
        (f"{apart:+.1%}", "makespan against the simulation"),
        (str(len(done)), "changes of plan carried out"),
        (str(len(back)), "engines that were lost and came back"),
    ]


def _simulated_curve(simulated: Driven) -> Curve:
    total, points = 0, [(0.0, 0.0)]
    for step in simulated.loop.record.steps:
        total += step.tokens
        points.append((step.synced, float(total)))
    return points


def _told(log: Iterator[Row]) -> str:
    told = [each for each in explanations(log) if _is_worth_telling(each)]
    rows = "".join(f"<li>{each.at:,.0f} s: {escape(each.sentence)}</li>" for each in told[:_MOST_TOLD])
    return f'<ol class="told">{rows}</ol>' + cut_note(min(len(told), _MOST_TOLD), len(told), "decisions")


def _is_worth_telling(each: Explained) -> bool:
    return each.kind in _TOLD and not each.sentence.startswith("the planner asks")
