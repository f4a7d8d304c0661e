"""Fleet dynamics on the page: crashes, slow GPUs, slow links, autoscaling.

Replicas over time and effects of crashes come from the summary, times of faults from the scenario.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from steelyard.report.markup import chart_boxes, cut_note, text_table
from steelyard.scenario import ChangeSpec, CrashSpec, Scenario, SlowSpec
from steelyard.sim.plots.changes import MOST_EVENTS, What, events, serving_pools, until
from steelyard.words import count, plural, seconds, significant

if TYPE_CHECKING:
    from steelyard.sim import Result, Summary

SERVING_HEAD = ("Serving", "at first", "fewest", "most", "at the end", "changes", "GPU-hours up")
EVENTS_HEAD = ("What happens", "pool", "replica", "from", "until")
MOST_FIGURES = 8


def serving_rows(summary: Summary) -> list[list[str]]:
    """One row for each pool of a fleet with dynamics: how many of its replicas served."""
    rows = []
    for pool in serving_pools(summary):
        counts = [int(served) for _, served in pool.replicas]
        levels = (counts[0], min(counts), max(counts), counts[-1], len(counts) - 1)
        rows.append([pool.name, *map(count, levels), significant(pool.gpu_hours_up)])
    return rows


def event_rows(scenario: Scenario) -> list[list[str]]:
    """What the scenario says will happen, in its order."""
    return [_event(change, what) for change, what in events(scenario)]


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
    charts = result.plot.serving()
    crashes, happens = crash_line(result), event_rows(result.scenario)
    parts = [
        f"<p>{escape(crashes)}.</p>" if crashes else "",
        chart_boxes(charts[:MOST_FIGURES], "two" if len(charts) > 1 else "one"),
        cut_note(min(len(charts), MOST_FIGURES), len(charts), "pools that change"),
        text_table(SERVING_HEAD, serving_rows(result.summary)),
        text_table(EVENTS_HEAD, happens[:MOST_EVENTS]),
        cut_note(min(len(happens), MOST_EVENTS), len(happens), "events"),
    ]
    return "".join(parts)


def _event(change: ChangeSpec, what: What) -> list[str]:
    end = until(change, what)
    which = "all" if what.replica is None else count(what.replica)
    return [_words(what), what.pool, which, seconds(change.at), "the end" if end is None else seconds(end)]


def _words(what: What) -> str:
    if isinstance(what, CrashSpec):
        return "crash"
    if isinstance(what, SlowSpec):
        return f"slow GPU, {what.factor:g} × the time"
    link = "NIC" if what.of == "nic" else "NVLink"
    return f"narrow {link}, {what.factor:g} × the bandwidth"
