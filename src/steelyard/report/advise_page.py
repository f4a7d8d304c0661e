"""The page of an advice: replicas over time above the arrivals and the misses, for each fleet."""

from __future__ import annotations

from html import escape

import numpy as np

from steelyard.plot import Axis, Chart, Marks
from steelyard.plot.marks import Hue
from steelyard.quoting import printable
from steelyard.report.advise import HEADS, advice_cells, introduction
from steelyard.report.frame import Page
from steelyard.report.markup import chart_boxes, html_table
from steelyard.search.advise import AdviceRow, FleetAdvice
from steelyard.words import percent, seconds

_HUES: dict[str, Hue] = {"fixed": "soft", "policy": "1", "bound": "4"}


def advice_page(found: FleetAdvice) -> str:
    """The whole page; equal bytes for equal figures."""
    told = "".join(f"<li>{escape(printable(line))}</li>" for line in introduction(found))
    rows = [[escape(printable(cell)) for cell in advice_cells(row, found)] for row in found.rows]
    advice = f"<p><b>{escape(printable(found.sentence))}</b></p>"
    return Page(
        title=f"{found.trace} on {found.scenario}",
        lede=(f"{found.requests:,} requests", f"{found.least} to {found.most} replicas of {found.gpu}"),
        top=f'<section class="verdict">{advice}<ul class="told">{told}</ul></section>',
        sections={
            "Fleets": html_table(HEADS, rows),
            "Over time": chart_boxes([_arrivals(found)], "one")
            + "".join(
                chart_boxes([_replicas(row, found, i), _misses(row, found, i)], "two")
                for i, row in enumerate(found.rows)
            )
            + "<p>The shaded part is the one that settings were tuned on; the rest is judged.</p>",
            "By hour": _hours(found),
        },
    ).html()


def _over_time(found: FleetAdvice) -> str:
    """Arrivals, then replicas and misses of each fleet."""
    fleets = (
        chart_boxes([_replicas(row, found, i), _misses(row, found, i)], "two") for i, row in enumerate(found.rows)
    )
    said = "<p>The shaded part is the one that settings were tuned on; the rest is judged.</p>"
    return f"{chart_boxes([_arrivals(found)], 'one')}{''.join(fleets)}{said}"


def _hours(found: FleetAdvice) -> str:
    """Latencies by hour of the part that was judged."""
    heads = ("", "from", "requests", "missed", "TTFT p95", "TTFT p99", "TPOT p95", "TPOT p99")
    rows = [
        [
            escape(row.name),
            seconds(hour.start),
            f"{hour.requests:,}",
            percent(hour.missed),
            *(seconds(each) for each in (hour.ttft_p95, hour.ttft_p99, hour.tpot_p95, hour.tpot_p99)),
        ]
        for row in found.rows
        for hour in row.judged.hours
    ]
    return html_table(heads, rows)


def _arrivals(found: FleetAdvice) -> Chart:
    rates = np.array(found.arrivals)
    marks = Marks("steps", _edges(found), np.append(rates, rates[-1:]), "", "3", fill=True)
    return _chart("arrivals", "Arrivals", Axis("requests per second", "number", low=0.0), found, marks)


def _replicas(row: AdviceRow, found: FleetAdvice, place: int) -> Chart:
    """Replicas that hold GPUs."""
    held = [(at, size) for at, size in row.held if at <= found.seconds]
    at, sizes = np.array([*held, (found.seconds, held[-1][1])], dtype=np.float64).T
    most = max(size for each in found.rows for _, size in each.held)
    marks = Marks("steps", at, sizes, "", _HUES[row.kind], fill=True)
    return _chart(
        f"replicas-{place}", f"Replicas: {row.name}", Axis("replicas", "whole", 0.0, 1.08 * most), found, marks
    )


def _misses(row: AdviceRow, found: FleetAdvice, place: int) -> Chart:
    """The share of requests that missed a limit."""
    shares = [miss / came if came else 0.0 for miss, came in zip(row.misses, found.arrivals, strict=True)]
    marks = Marks("steps", _edges(found), np.array([*shares, shares[-1]]), "", "2", fill=True)
    return _chart(f"misses-{place}", f"Missed: {row.name}", Axis("share missed", "share", 0.0, 1.0), found, marks)


def _chart(name: str, title: str, up: Axis, found: FleetAdvice, marks: Marks) -> Chart:
    tuned = Marks("spans", np.zeros(1), np.ones(1), "for tuning", "soft", ends=np.array([found.split]))
    return Chart(name, title, Axis("time", "clock", 0.0, found.seconds), up, (tuned, marks), group="time")


def _edges(found: FleetAdvice) -> np.ndarray:
    """Where buckets begin, and the end of the last."""
    return np.array([min(i * found.bucket, found.seconds) for i in range(len(found.arrivals) + 1)])
