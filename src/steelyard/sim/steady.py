"""The steady window: the part of a run in which the fleet neither fills nor drains.

The window ends when requests stop arriving: at the last first turn, or when the first user of a closed loop is done.
Its start is found by MSER-5 (White, Cobb and Spratt, "A comparison of five steady-state truncation heuristics for
simulation", WSC 2000) on the number of requests in the system: of all beginnings in the first half, the one that leaves
the smallest standard error of the mean. If that is the last of them the run is too short to tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import numpy as np

from steelyard.engine import EngineLog
from steelyard.records import Floats
from steelyard.scenario import ClosedArrivals, Scenario, VaryingArrivals
from steelyard.sim.spread import Column, percentiles
from steelyard.sim.summary import Interval, Unsteady
from steelyard.workload import Workload
from steelyard.workload.columns import root_of

_SLICES, _BATCH = 1000, 5  # most observations, and how many MSER-5 averages
_FEWEST = 100  # requests in a window
_LONGEST = 99  # percentile of time in the system: the least time until as many leave as arrive
_BATCHES = 20  # batches of the window, for batch means
_STUDENT = 1.729  # 95 % quantile of Student's t with one degree of freedom less
# A queue grows if it grows by more standard errors than this, and by more than this share of arrivals. Batch means of a
# random walk vary less than its ends, by sqrt(2 / 3), so this is about two standard errors.
_SIGNIFICANT, _SIZEABLE = 2.5, 0.02


@dataclass(frozen=True)
class Window:
    """Seconds of the run's clock."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        return self.end - self.start


def steady_window(
    scenario: Scenario, workload: Workload, requests: dict[str, Column], logs: Sequence[EngineLog]
) -> Window | Unsteady:
    """The window that the scenario gives, or else the one found by MSER-5; or why there is none."""
    ended = ends(requests)
    over = max((float(log.ends[-1]) for log in logs if len(log.ends)), default=0.0)
    if scenario.steady is not None:
        start, end = scenario.steady.start, scenario.steady.end
        if start >= over:
            return Unsteady(f"it was to begin at {start:g} s, when all was served")
        return Window(start, over if end is None else min(end, over))
    changing = _changes(scenario)
    if changing:
        return Unsteady(changing)
    came = requests["arrival"] <= over
    arrival, ended = requests["arrival"][came], ended[came]
    if not len(arrival):
        return Unsteady("nothing was served")
    first, last = float(arrival.min()), min(over, _last_arrival(scenario, workload, requests))
    if last <= first:
        return Unsteady("all requests come at once, and none while they are served")
    if len(arrival) < _FEWEST:
        return Unsteady(f"{len(arrival)} requests are too few to tell; it takes {_FEWEST}")
    later = Window(first + (last - first) / 4, last)
    arrive, finish = _per_second(arrival, later), _per_second(requests["finish"][_finished(requests)], later)
    if finish and not _closed(scenario) and _queue_grows(arrival, ended, later, logs):
        return Unsteady(f"overloaded: {arrive:.3g} requests/s arrive, {finish:.3g} finish", arrive, finish)
    edges = np.linspace(first, last, min(_SLICES, len(arrival)) // _BATCH + 1)
    cut = truncation(np.diff(in_system(arrival, ended, edges)))
    (longest,) = percentiles((ended - arrival)[ended < np.inf], [_LONGEST])
    if cut is None:
        return Unsteady(f"too short: after half of the {last - first:.3g} s of arrivals the load has not settled")
    start = max(float(edges[cut]), first + longest)
    if last - start < 2 * longest or ((ended > start) & (ended <= last)).sum() < _FEWEST:
        return Unsteady(_still_filling(last - first, longest))
    return Window(start, last)


def ends(requests: dict[str, Column]) -> Floats:
    """When each request ended: last token, abort or rejection; infinite if it did not end."""
    turned_away = np.where(requests["status"] == "rejected", requests["arrival"], np.inf)
    return np.where(np.isfinite(requests["finish"]), requests["finish"], turned_away)


def in_system(arrival: Floats, ended: Floats, edges: Floats) -> Floats:
    """Request-seconds in the system up to each moment."""
    return _past(arrival, edges) - _past(ended, edges)


def truncation(series: Floats) -> int | None:
    """Observations to drop at the start, by MSER; None if it would be half of them or more."""
    n = len(series)
    if n < 4:
        return None
    left = np.arange(n, 0, -1)
    sums, squares = np.cumsum(series[::-1])[::-1], np.cumsum(series[::-1] ** 2)[::-1]
    errors = np.maximum(squares - sums**2 / left, 0.0) / left**2
    half = n // 2
    cut = int(np.argmin(errors[: half + 1]))
    return None if cut == half else cut


def sampling_interval(came: Floats, left: Floats, amounts: Floats | None, window: Window) -> Interval:
    """The 90 % interval of a rate, by batch means. ``amounts`` is what each request counts, 1 by default.

    In the long run as much leaves as arrives, so both are used. Near saturation only arrivals vary as they should.
    """
    edges = np.linspace(window.start, window.end, _BATCHES + 1)
    found = []
    for moments in (came, left):
        rates = np.histogram(moments, edges, weights=amounts)[0] / (window.seconds / _BATCHES)
        wide = _STUDENT * float(rates.std(ddof=1)) / sqrt(_BATCHES)
        found.append((float(rates.mean()) - wide, float(rates.mean()) + wide))
    return max(0.0, min(low for low, _ in found)), max(high for _, high in found)


def _changes(scenario: Scenario) -> str:
    """What a scenario changes during the run, in words; empty if nothing."""
    if scenario.dynamics or any(pool.autoscale for pool in scenario.fleet.pools):
        return "the fleet changes while it serves; steady: {start, end} gives a window"
    if any(isinstance(spec.arrivals, VaryingArrivals) for spec in scenario.workload.workloads()):
        return "the rate of arrivals changes; steady: {start, end} gives a window"
    return ""


def _last_arrival(scenario: Scenario, workload: Workload, requests: dict[str, Column]) -> float:
    """When the first workload of the mix has no more arrivals."""
    found = []
    roots = root_of(workload.after)
    for i, spec in enumerate(scenario.workload.workloads()):
        own = np.flatnonzero(workload.label == i)
        if not len(own):
            continue
        if isinstance(spec.arrivals, ClosedArrivals):
            finish = ends(requests)[own]
            done = np.full(len(workload), -np.inf)
            np.maximum.at(done, roots[own], np.where(np.isfinite(finish), finish, np.inf))
            found.append(float(done[np.unique(roots[own])].min()))
        else:
            found.append(float(np.nanmax(requests["arrival"][own[workload.after[own] < 0]])))
    return min(found)


def _closed(scenario: Scenario) -> bool:
    """Whether all workloads are closed loops, in which no queue can grow without bound."""
    return all(isinstance(spec.arrivals, ClosedArrivals) for spec in scenario.workload.workloads())


def _finished(requests: dict[str, Column]) -> Column:
    return np.asarray(requests["status"] == "finished")


def _per_second(moments: Floats, window: Window) -> float:
    return float(((moments > window.start) & (moments <= window.end)).sum()) / window.seconds


def _queue_grows(arrival: Floats, ended: Floats, window: Window, logs: Sequence[EngineLog]) -> bool:
    """Whether the number of waiting requests grows, by a t-test on its increase from batch to batch."""
    came, left = (_per_second(moments, window) * window.seconds for moments in (arrival, ended))
    if came - left < _SIZEABLE * came:
        return False
    edges = np.linspace(window.start, window.end, _BATCHES + 1)
    running = sum((_running(log, edges) for log in logs), np.zeros(len(edges)))
    waiting = np.diff(in_system(arrival, ended, edges) - running) / (window.seconds / _BATCHES)
    increase = np.diff(waiting)
    chance = float(increase.std(ddof=1)) / sqrt(len(increase))
    return float(increase.sum()) >= _SIZEABLE * came and float(increase.mean()) >= _SIGNIFICANT * chance


def _running(log: EngineLog, moments: Floats) -> Floats:
    """Request-seconds in an engine's batch up to each moment."""
    if not len(log.ends):
        return np.zeros(len(moments))
    rows = log.stretches()
    start, end = log.start()[rows["step"]], log.end[rows["step"] + rows["steps"] - 1]
    spent = np.cumsum((end - start) * rows["running"])
    moment = np.column_stack([start, end]).ravel()
    return np.asarray(np.interp(moments, moment, np.column_stack([np.append(0.0, spent[:-1]), spent]).ravel()))


def _past(times: Floats, moments: Floats) -> Floats:
    """For each moment: the sum of seconds since all earlier times."""
    ordered = np.sort(times)
    before = np.searchsorted(ordered, moments)
    return np.asarray(before * moments - np.append(0.0, np.cumsum(ordered))[before])


def _still_filling(seconds: float, longest: float) -> str:
    return f"too short: requests come for {seconds:.3g} s, and one in a hundred stays for {longest:.3g} s or more"
