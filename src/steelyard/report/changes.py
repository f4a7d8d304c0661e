"""Fleet dynamics on the page: crashes, slow GPUs, slow links, autoscaling.

Replicas over time and effects of crashes come from the summary, times of faults from the scenario.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.report.axis import TimeAxis, time_axis
from steelyard.report.markup import cut_note, figure_boxes, text_table
from steelyard.report.words import count, plural, seconds, significant
from steelyard.scenario import ChangeSpec, CrashSpec, LinkSpec, Scenario, SlowSpec

if TYPE_CHECKING:
    from steelyard.sim import Result, Summary
    from steelyard.sim.summary import ServingFigures

What = CrashSpec | SlowSpec | LinkSpec

SERVING_HEAD = ("Serving", "at first", "fewest", "most", "at the end", "changes", "GPU-hours up")
EVENTS_HEAD = ("What happens", "pool", "replica", "from", "until")
MOST_FIGURES = 8
MOST_EVENTS = 100


def serving_rows(summary: Summary) -> list[list[str]]:
    """One row for each pool of a fleet with dynamics: how many of its replicas served."""
    rows = []
    for pool in _pools(summary):
        counts = [int(served) for _, served in pool.replicas]
        levels = (counts[0], min(counts), max(counts), counts[-1], len(counts) - 1)
        rows.append([pool.name, *map(count, levels), significant(pool.gpu_hours_up)])
    return rows


def event_rows(scenario: Scenario) -> list[list[str]]:
    """What the scenario says will happen, in its order."""
    return [_event(change, what) for change, what in _events(scenario)]


def crash_line(result: Result) -> str:
    """Effects of crashes; empty if the scenario has none."""
    planned = sum(change.crash is not None for change in result.scenario.dynamics)
    told = result.summary.dynamics
    if not planned or told is None:
        return ""
    happened = told.crashes
    crashes = plural(happened, "crash") if happened == 1 else f"{count(happened)} crashes"
    among = f" (of {count(planned)}: the others found no engine there)" if happened < planned else ""
    again = f"{plural(told.retried_requests, 'request')} started over, {count(told.retries)} times in all"
    return f"{crashes}{among}; {again}"


def changes_section(result: Result) -> str:
    """Replicas over time by pool, and faults; empty for a fleet without dynamics."""
    if result.summary.dynamics is None:
        return ""
    changing = _changing(result)
    figures = [(f"serving-{i}", f"Replicas that serve: {pool.name}") for i, pool in enumerate(changing)]
    crashes, events = crash_line(result), event_rows(result.scenario)
    parts = [
        f"<p>{escape(crashes)}.</p>" if crashes else "",
        figure_boxes(figures[:MOST_FIGURES], "two" if len(figures) > 1 else "one")
        if figures and time_axis(result)
        else "",
        cut_note(min(len(figures), MOST_FIGURES), len(figures), "pools that change"),
        text_table(SERVING_HEAD, serving_rows(result.summary)),
        text_table(EVENTS_HEAD, events[:MOST_EVENTS]),
        cut_note(min(len(events), MOST_EVENTS), len(events), "events"),
    ]
    return "".join(parts)


def serving_over_time(result: Result, axis: TimeAxis) -> list[dict[str, Any]]:
    """For each pool with changing replicas or faults: replicas over time, and the times of faults."""
    drawn = []
    for pool in _changing(result)[:MOST_FIGURES]:
        counts = [(max(axis.start, at), int(serving)) for at, serving in pool.replicas if at <= axis.end]
        points = _thinned(counts, axis)
        drawn.append(
            {
                "at": [at for at, _ in points],
                "serving": [serving for _, serving in points],
                **_marks([each for each in _events(result.scenario)[:MOST_EVENTS] if each[1].pool == pool.name], axis),
            }
        )
    return drawn


def _marks(events: Sequence[tuple[ChangeSpec, What]], axis: TimeAxis) -> dict[str, Any]:
    """Times of crashes and restarts, and the spans in which GPUs or links were slow, within the run."""
    moments: dict[str, list[float]] = {"crashes": [], "restarts": []}
    spans: dict[str, list[tuple[float, float]]] = {"slow": [], "narrow": []}
    for change, what in events:
        until = _until(change, what)
        if isinstance(what, CrashSpec):
            moments["crashes"].append(change.at)
            moments["restarts"] += [] if until is None else [until]
        else:
            kind = "slow" if isinstance(what, SlowSpec) else "narrow"
            spans[kind].append((max(change.at, axis.start), min(axis.end if until is None else until, axis.end)))
    inside = {name: [at for at in found if axis.start <= at <= axis.end] for name, found in moments.items()}
    return {**inside, **{name: [span for span in found if span[0] < span[1]] for name, found in spans.items()}}


def _thinned(points: list[tuple[float, int]], axis: TimeAxis) -> list[tuple[float, int]]:
    """No more points than a figure can show: of each bin the first, the last, the lowest and the highest."""
    if len(points) <= 4 * axis.bins:
        return points
    members: dict[int, list[int]] = {}
    for i, where in enumerate(axis.bin_of(np.array([at for at, _ in points])).tolist()):
        members.setdefault(where, []).append(i)
    kept: set[int] = set()
    for own in members.values():
        kept |= {own[0], own[-1], min(own, key=lambda i: points[i][1]), max(own, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(kept)]


def _changing(result: Result) -> list[ServingFigures]:
    """Pools with changing replicas or faults."""
    touched = {what.pool for _, what in _events(result.scenario)}
    return [pool for pool in _pools(result.summary) if len(pool.replicas) > 1 or pool.name in touched]


def _pools(summary: Summary) -> list[ServingFigures]:
    """Those that have replicas of their own: FFN GPUs belong to the units of the attention pool."""
    return [] if summary.dynamics is None else [pool for pool in summary.dynamics.pools if pool.replicas]


def _events(scenario: Scenario) -> list[tuple[ChangeSpec, What]]:
    return [(change, what) for change in scenario.dynamics for what in change.given().values()]


def _event(change: ChangeSpec, what: What) -> list[str]:
    until = _until(change, what)
    which = "all" if what.replica is None else count(what.replica)
    return [_words(what), what.pool, which, seconds(change.at), "the end" if until is None else seconds(until)]


def _words(what: What) -> str:
    if isinstance(what, CrashSpec):
        return "crash"
    if isinstance(what, SlowSpec):
        return f"slow GPU, {what.factor:g} × the time"
    link = "NIC" if what.of == "nic" else "NVLink"
    return f"narrow {link}, {what.factor:g} × the bandwidth"


def _until(change: ChangeSpec, what: What) -> float | None:
    """When the fault ends or the engine is up again; None if never."""
    if not isinstance(what, CrashSpec):
        return change.until
    return None if what.restart_after is None else change.at + what.restart_after
