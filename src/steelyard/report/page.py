"""The page: template, style and script from files, filled with one run's data.

All text comes from Python, so that it can be read without the script. The script only draws the figures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.files.reading import read_text
from steelyard.records.jsontext import inside_html
from steelyard.report.by_model import MODELS_HEAD, model_rows
from steelyard.report.cards import cards, provenance_bar, slo_panel
from steelyard.report.changes import changes_section
from steelyard.report.details import all_numbers, notes_panel, replica_table, scenario_text, workload_table
from steelyard.report.figures import figure_data, figured_pools
from steelyard.report.markup import cut_note, figure_boxes, text_table
from steelyard.report.pools import pool_section, step_time_bars
from steelyard.report.tiers import tier_section
from steelyard.report.verdict import (
    bottleneck_line,
    first_uses_line,
    fleet_line,
    limits,
    outcome,
    slo_line,
    steady_line,
    workload_line,
)

if TYPE_CHECKING:
    from steelyard.sim import Result, Summary

_LATENCY_FIGURES = (
    ("cdf-ttft", "Time to first token"),
    ("cdf-tpot", "Time per output token"),
    ("cdf-itl", "Time between tokens"),
    ("cdf-e2e", "End to end"),
)
_LOAD_FIGURES = (
    ("throughput", "Throughput, tokens a second"),
    ("queue", "Requests in the system"),
    ("batch", "Batch size, requests per step"),
    ("kv", "KV cache in use"),
)
_POOL_FIGURES = (("queue", "Requests"), ("batch", "Batch size"), ("kv", "KV cache in use"))
_WORKLOAD_FIGURES = (
    ("arrivals", "Time to first token by arrival"),
    ("prompt", "Prompt length, tokens"),
    ("output", "Output length, tokens"),
)
_LOG_SWITCH = '<label class="switch"><input type="checkbox" id="log-x" role="switch"> logarithmic time axis</label>'


def render_page(result: Result, notes: Sequence[str]) -> str:
    """The whole of report.html."""
    sections = {
        "Latency": _LOG_SWITCH + figure_boxes(_LATENCY_FIGURES, "four"),
        "Load": figure_boxes(_LOAD_FIGURES, "two") + _load_words(result.summary),
        "Changes": changes_section(result),
        "Requests": figure_boxes(_WORKLOAD_FIGURES, "requests") + workload_table(result),
        "Models": text_table(MODELS_HEAD, model_rows(result.summary)),
        "Pools": pool_section(result.summary) + _pool_figures(result.summary),
        "Cache": tier_section(result.summary),
        "Replicas": replica_table(result),
        "Numbers": all_numbers(result.summary),
        "Scenario": scenario_text(result),
    }
    present = {title: content for title, content in sections.items() if content}
    body = [_verdict(result), cards(result.summary), step_time_bars(result.summary)]
    body += [provenance_bar(result), notes_panel(notes)]
    body += [f'<section id="{title.lower()}"><h2>{title}</h2>{content}</section>' for title, content in present.items()]
    return _fill(
        _read("page.html"),
        {
            "title": escape(result.summary.name),
            "fleet": escape(fleet_line(result.summary)),
            "workload": escape(workload_line(result)),
            "nav": "".join(f'<a href="#{title.lower()}">{title}</a>' for title in present),
            "body": "\n".join(body),
            "version": escape(result.summary.steelyard),
            "seed": escape(str(result.summary.seed)),
            "data": inside_html(figure_data(result)),
            "css": _read("page.css"),
            "js": _read("page.js"),
        },
    )


def _verdict(result: Result) -> str:
    found = limits(result.summary)
    state = "met" if all(limit.met for limit in found) else "missed"
    standing = f'<strong class="{state}">{escape(slo_line(found))}</strong> ' if found else ""
    text = f"<p>{standing}{escape(outcome(result.summary))}</p>{_steady(result.summary)}"
    return f'<section class="verdict">{text}{slo_panel(found)}</section>'


def _steady(summary: Summary) -> str:
    state = "steady" if summary.steady is not None else "unsteady"
    line = bottleneck_line(summary)
    binds = f'<p class="binds"><b>Bottleneck</b> {escape(line)}</p>' if line else ""
    return f'<p class="{state}"><b>Steady</b> {escape(steady_line(summary))}</p>{binds}'


def _pool_figures(summary: Summary) -> str:
    """Queue, batch and cache of each pool."""
    pools = figured_pools(summary)
    boxes = [(f"{name}-{i}", f"{title}: {pool.name}") for i, pool in enumerate(pools) for name, title in _POOL_FIGURES]
    left_out = cut_note(len(pools), sum(pool.replicas > 0 for pool in summary.pools), "pools") if pools else ""
    return figure_boxes(boxes, "three") + left_out if boxes else ""


def _load_words(summary: Summary) -> str:
    """A note on the figures of the load."""
    said = ["The steady window is shaded" if summary.steady is not None else "", first_uses_line(summary)]
    return "".join(f"<p>{escape(text)}.</p>" for text in said if text)


def _read(name: str) -> str:
    return read_text(Path(__file__).parent / name)


def _fill(template: str, parts: dict[str, str]) -> str:
    """Replace {{name}} in one pass, so that braces in a user's text are never replaced."""
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)
