"""Results as they show themselves in a notebook: what was found in a few words, and small charts.

`late` finds these functions by name, since results are made before reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from steelyard.plot import BarChart, Chart
from steelyard.posttrain.result import PosttrainResult
from steelyard.quoting import printable
from steelyard.report.posttrain_page import posttrain_lines
from steelyard.report.search import search_words
from steelyard.report.sweep import sweep_lines
from steelyard.report.verdict import bottleneck_line, fleet_line, limits, outcome, slo_line, steady_line
from steelyard.search.search import SearchResult
from steelyard.search.sweep_result import SweepResult
from steelyard.sim import Result
from steelyard.words import dollars, percent, seconds, significant

_WIDTH, _HEIGHT = 380.0, 160.0
_CARD = "border:1px solid #dfe4e8;border-radius:8px;padding:10px 14px;max-width:820px;background:#fff;color:#17212b"


def result_html(result: Result) -> str:
    """A run: the verdict, what binds, its figures, four small charts."""
    if not (result.has("summary") and result.has("requests")):
        return f"<pre>{escape(repr(result))}</pre>"
    summary, plots = result.summary, result.plot
    found = limits(summary)
    lines = [f"{slo_line(found)} {outcome(summary)}" if found else outcome(summary)]
    lines += [f"Bottleneck: {line}" for line in [bottleneck_line(summary)] if line]
    lines.append(f"Steady: {steady_line(summary)}")
    rate = summary.throughput if summary.steady is None else summary.steady.throughput
    figures = {
        "TTFT p50": seconds(summary.ttft.p50),
        "TTFT p95": seconds(summary.ttft.p95),
        "TPOT p95": seconds(summary.tpot.p95),
        "output tokens/s": significant(rate.output_tokens_per_s),
        "per M tokens": dollars(summary.cost.usd_per_million_tokens),
        "KV in use, peak": percent(summary.kv.peak_use),
    }
    charts: list[Chart | BarChart] = [plots.ttft(), plots.tpot()]
    charts += [plots.throughput(), plots.requests()] if result.has("steps") else []
    return _card(summary.name, fleet_line(summary), lines, figures, charts)


def posttrain_html(result: PosttrainResult) -> str:
    """A post-training run: the verdict, its figures, the mean step and the GPUs."""
    got, plots = result.summary, result.plot
    figures = {
        "a step": seconds(got["step_seconds"]["total"]),
        "tokens/s": significant(got["tokens_per_second"]),
        "a step costs": dollars(got["cost"]["usd_per_step"]),
        "rollout GPUs idle": percent(got["gpu_time"]["rollout"]["idle"]),
        "training GPUs idle": percent(got["gpu_time"]["training"]["idle"]),
    }
    charts = [plots.step(), plots.steps(), *(plots.gantt().charts if "held" in result.__dict__ else ())]
    return _card(got["name"], f"{got['gpus']} GPUs, {got['mode']}", posttrain_lines(got), figures, charts)


def search_html(found: SearchResult) -> str:
    """A search: what to buy at each level of the limits."""
    charts = [
        chart for level in found.levels for chart in (found.plot.frontier(level.name), found.plot.fleets(level.name))
    ]
    objective = f"objective {found.scenario.search.objective}"
    return _card(found.scenario.name, objective, list(search_words(found)), {}, charts)


def sweep_html(found: SweepResult) -> str:
    """A sweep: the best point, and charts of the main figures."""
    return _card(found.plan.name, "sweep", sweep_lines(found.plan, found.rows), {}, found.plot().charts)


def _card(
    title: str, lede: str, lines: Sequence[str], figures: dict[str, str], charts: Sequence[Chart | BarChart]
) -> str:
    """All styles are on the elements, and all is escaped: a notebook shows this among its own."""
    told = "".join(f'<p style="margin:4px 0">{escape(printable(line))}</p>' for line in lines)
    cells = " ".join(
        f'<span style="display:inline-block;margin-right:18px">{escape(name)} <b>{escape(value)}</b></span>'
        for name, value in figures.items()
    )
    drawn = "".join(_small(chart) for chart in charts)
    return (
        f'<div style="{_CARD}"><b>{escape(printable(title))}</b> <span style="color:#52606d">'
        f'{escape(printable(lede))}</span>{told}<p style="margin:6px 0">{cells}</p>'
        f'<div style="display:flex;flex-wrap:wrap;align-items:flex-start;gap:6px">{drawn}</div></div>'
    )


def _small(chart: Chart | BarChart) -> str:
    return chart.svg(_WIDTH) if isinstance(chart, BarChart) else chart.svg(_WIDTH, _HEIGHT)
