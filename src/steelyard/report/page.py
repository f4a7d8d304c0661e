"""The page of a run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from steelyard.report.by_model import MODELS_HEAD, model_rows
from steelyard.report.cards import cards, slo_panel
from steelyard.report.changes import changes_section
from steelyard.report.details import all_numbers, notes_panel, replica_table, scenario_text, workload_table
from steelyard.report.frame import Page
from steelyard.report.markup import chart_boxes, cut_note, text_table
from steelyard.report.pools import acceptance_line, pool_section
from steelyard.report.tiers import tier_section
from steelyard.report.verdict import (
    bottleneck_line,
    first_uses_line,
    fleet_line,
    limits,
    outcome,
    silicon_line,
    slo_line,
    sources_line,
    steady_line,
    workload_line,
)
from steelyard.sim.plots.binned import PARTS
from steelyard.sim.plots.plots import ResultPlots

if TYPE_CHECKING:
    from steelyard.sim import Result, Summary

_MOST_POOLS = 6
_LOG_SWITCH = '<label class="switch"><input type="checkbox" id="log-x" role="switch"> logarithmic time axis</label>'
_BANDS = (
    f"Curves are means over short intervals; the band around one is from the lowest to the highest of {PARTS} parts."
)


def render_page(result: Result, notes: Sequence[str]) -> str:
    """The whole of report.html."""
    summary, plots = result.summary, result.plot
    return Page(
        title=summary.name,
        lede=(fleet_line(summary), workload_line(result)),
        top="".join((_verdict(result), cards(summary), notes_panel(notes))),
        sections={
            "Latency": _latency(result, plots),
            "Load": _load(result, plots),
            "Step time": _step_time(result, plots),
            "Pools": pool_section(summary) + _pools(plots),
            "Changes": changes_section(result),
            "Requests": _requests(result, plots),
            "Models": text_table(MODELS_HEAD, model_rows(summary)),
            "Cache": tier_section(result),
            "Replicas": replica_table(result),
            "Numbers": all_numbers(summary),
            "Scenario": scenario_text(result),
        },
        made=f"Simulated by Steelyard {summary.steelyard} with seed {summary.seed}.",
    ).html()


def _verdict(result: Result) -> str:
    found = limits(result.summary)
    state = "met" if all(limit.met for limit in found) else "missed"
    standing = f'<strong class="{state}">{escape(slo_line(found))}</strong> ' if found else ""
    text = f"<p>{standing}{escape(outcome(result.summary))}</p>{_steady(result.summary)}"
    return f'<section class="verdict">{text}{slo_panel(found)}</section>'


def _steady(summary: Summary) -> str:
    """What binds, then whether the run is steady."""
    state = "steady" if summary.steady is not None else "unsteady"
    line = bottleneck_line(summary)
    binds = f'<p class="binds"><b>Bottleneck</b> {escape(line)}</p>' if line else ""
    return f'{binds}<p class="{state}"><b>Steady</b> {escape(steady_line(summary))}</p>'


def _latency(result: Result, plots: ResultPlots) -> str:
    stated = result.summary.intervals
    said = (
        ""
        if stated is None
        else f"<p>Bands are intervals of the percentiles from p50 to p99 ({stated.share:.0%} sure).</p>"
    )
    return _LOG_SWITCH + chart_boxes([plots.ttft(), plots.tpot(), plots.itl(), plots.e2e()], "two") + said


def _load(result: Result, plots: ResultPlots) -> str:
    charts = [plots.throughput(), plots.requests(), plots.batch(), plots.kv()]
    said = [_BANDS, first_uses_line(result.summary)]
    return chart_boxes(charts, "two") + "".join(f"<p>{escape(text.rstrip('.'))}.</p>" for text in said if text)


def _step_time(result: Result, plots: ResultPlots) -> str:
    summary, hint = result.summary, silicon_line(result)
    charts = [*plots.step_time().charts, plots.provenance()]
    said = (acceptance_line(summary), f"Operators by source: {sources_line(summary)}", hint)
    return chart_boxes(charts, "two") + "".join(f"<p>{escape(text)}</p>" for text in said if text)


def _pools(plots: ResultPlots) -> str:
    """Queue, batch and cache of each pool, and the links between pools."""
    pools = plots.pools()
    charts = [chart for pool in pools[:_MOST_POOLS] for chart in plots.timeline(pool.name).charts]
    links = plots.links()
    joined = chart_boxes([links], "one") if links.shown else ""
    return chart_boxes(charts, "three") + cut_note(min(len(pools), _MOST_POOLS), len(pools), "pools") + joined


def _requests(result: Result, plots: ResultPlots) -> str:
    charts = [plots.arrivals(), plots.prompt_lengths(), plots.output_lengths()]
    return chart_boxes(charts, "requests") + workload_table(result)
