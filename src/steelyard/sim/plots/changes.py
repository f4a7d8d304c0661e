"""Replicas of a pool over time, with crashes, restarts and slow times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from steelyard.plot import Axis, Chart, Marks
from steelyard.plot.marks import Hue
from steelyard.scenario import ChangeSpec, CrashSpec, LinkSpec, Scenario, SlowSpec
from steelyard.sim.plots.axis import TimeAxis
from steelyard.sim.summary import ServingFigures, Summary
from steelyard.words import count

if TYPE_CHECKING:
    from steelyard.sim.result import Result

What = CrashSpec | SlowSpec | LinkSpec
MOST_EVENTS = 100


def serving(result: Result, axis: TimeAxis) -> list[Chart]:
    """A chart for each pool with changing replicas or faults."""
    return [_chart(result, axis, pool, place) for place, pool in enumerate(changing(result))]


def _chart(result: Result, axis: TimeAxis, pool: ServingFigures, place: int) -> Chart:
    points = [(max(axis.start, at), int(serving)) for at, serving in pool.replicas if at <= axis.end]
    at, counts = np.array([*_thinned(points, axis), (axis.end, points[-1][1])], dtype=np.float64).T
    least, most = int(counts.min()), int(counts.max())
    told = count(most) if least == most else f"{count(least)} to {count(most)}"
    own = [each for each in events(result.scenario)[:MOST_EVENTS] if each[1].pool == pool.name]
    marks = [*_spans(own, axis), Marks("steps", at, counts, "serving", "1", fill=True, said=told), *_moments(own, axis)]
    title, along = f"Replicas that serve: {pool.name}", Axis("time", "clock", axis.start, axis.end)
    return Chart(f"serving-{place}", title, along, Axis("replicas", "whole", low=0.0), tuple(marks), group="time")


def _spans(own: Sequence[tuple[ChangeSpec, What]], axis: TimeAxis) -> list[Marks]:
    """When GPUs or links are slow, within the run."""
    kinds: tuple[tuple[type[What], str, Hue], ...] = ((SlowSpec, "slow GPUs", "2"), (LinkSpec, "narrow links", "5"))
    found = []
    for kind, name, hue in kinds:
        spans = [
            (max(change.at, axis.start), min(axis.end if change.until is None else change.until, axis.end))
            for change, what in own
            if isinstance(what, kind)
        ]
        inside = np.array([span for span in spans if span[0] < span[1]]).reshape(-1, 2)
        found.append(Marks("spans", inside[:, 0], np.ones(len(inside)), name, hue, ends=inside[:, 1]))
    return found


def _moments(own: Sequence[tuple[ChangeSpec, What]], axis: TimeAxis) -> list[Marks]:
    """Crashes and restarts within the run."""
    crashes = [(change, what) for change, what in own if isinstance(what, CrashSpec)]
    restarts = [until(change, what) for change, what in crashes]
    kinds: tuple[tuple[list[float | None], str, Hue], ...] = (
        ([change.at for change, _ in crashes], "crash", "bad"),
        (restarts, "restart", "good"),
    )
    found = []
    for moments, name, hue in kinds:
        at = np.array([each for each in moments if each is not None and axis.start <= each <= axis.end])
        found.append(Marks("rules", at, np.ones(len(at)), name, hue))
    return found


def changing(result: Result) -> list[ServingFigures]:
    """Pools with changing replicas or faults."""
    touched = {what.pool for _, what in events(result.scenario)}
    return [pool for pool in serving_pools(result.summary) if len(pool.replicas) > 1 or pool.name in touched]


def serving_pools(summary: Summary) -> list[ServingFigures]:
    """Those that have replicas of their own: FFN GPUs belong to the units of the attention pool."""
    return [] if summary.dynamics is None else [pool for pool in summary.dynamics.pools if pool.replicas]


def events(scenario: Scenario) -> list[tuple[ChangeSpec, What]]:
    """What the scenario says will happen, in its order."""
    return [(change, what) for change in scenario.dynamics for what in change.given().values()]


def until(change: ChangeSpec, what: What) -> float | None:
    """When the fault ends or the engine is up again; None if never."""
    if not isinstance(what, CrashSpec):
        return change.until
    return None if what.restart_after is None else change.at + what.restart_after


def _thinned(points: list[tuple[float, int]], axis: TimeAxis) -> list[tuple[float, int]]:
    """No more points than a chart can show: of each bin the first, the last, the lowest and the highest."""
    if len(points) <= 4 * axis.bins:
        return points
    members: dict[int, list[int]] = {}
    for i, where in enumerate(axis.bin_of(np.array([at for at, _ in points])).tolist()):
        members.setdefault(where, []).append(i)
    kept: set[int] = set()
    for own in members.values():
        kept |= {own[0], own[-1], min(own, key=lambda i: points[i][1]), max(own, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(kept)]
