"""The page: template, style and script from their own files, put together with one run's numbers.

Text comes from Python, so that it can be read without a script; the script only draws the figures.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from steelyard.report.cards import cards, provenance_bar, slo_panel
from steelyard.report.details import all_numbers, notes_panel, pool_table, replica_table, scenario_text, workload_table
from steelyard.report.figures import figure_data
from steelyard.report.jsontext import inside_html
from steelyard.report.verdict import fleet_line, limits, outcome, slo_line, workload_line

if TYPE_CHECKING:
    from steelyard.sim import Result

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
_WORKLOAD_FIGURES = (
    ("arrivals", "Time to first token by arrival"),
    ("prompt", "Prompt length, tokens"),
    ("output", "Output length, tokens"),
)
_LOG_SWITCH = '<label class="switch"><input type="checkbox" id="log-x" role="switch"> logarithmic time axis</label>'


def render_page(result: Result, notes: Sequence[str]) -> str:
    """The whole of report.html."""
    sections = {
        "Latency": _LOG_SWITCH + _figures(_LATENCY_FIGURES, "four"),
        "Load": _figures(_LOAD_FIGURES, "two"),
        "Requests": _figures(_WORKLOAD_FIGURES, "requests") + workload_table(result),
        "Pools": pool_table(result.summary),
        "Replicas": replica_table(result),
        "Numbers": all_numbers(result.summary),
        "Scenario": scenario_text(result),
    }
    present = {title: content for title, content in sections.items() if content}
    body = [_verdict(result), cards(result.summary), provenance_bar(result.summary), notes_panel(notes)]
    body += [f'<section id="{title.lower()}"><h2>{title}</h2>{content}</section>' for title, content in present.items()]
    return _fill(
        _read("page.html"),
        {
            "title": escape(result.summary["name"]),
            "fleet": escape(fleet_line(result.summary)),
            "workload": escape(workload_line(result)),
            "nav": "".join(f'<a href="#{title.lower()}">{title}</a>' for title in present),
            "body": "\n".join(body),
            "version": escape(str(result.summary["steelyard"])),
            "seed": escape(str(result.summary["seed"])),
            "data": inside_html(figure_data(result)),
            "css": _read("page.css"),
            "js": _read("page.js"),
        },
    )


def _verdict(result: Result) -> str:
    found = limits(result.summary)
    state = "met" if all(limit.met for limit in found) else "missed"
    standing = f'<strong class="{state}">{escape(slo_line(found))}</strong> ' if found else ""
    text = f"<p>{standing}{escape(outcome(result.summary))}</p>"
    return f'<section class="verdict">{text}{slo_panel(found)}</section>'


def _figures(figures: Sequence[tuple[str, str]], layout: str) -> str:
    boxes = (
        f'<figure id="fig-{name}"><figcaption>{title}</figcaption>'
        '<div class="readout"></div>'
        '<div class="plot"><noscript>The figures need JavaScript.</noscript></div></figure>'
        for name, title in figures
    )
    return f'<div class="figures {layout}">{"".join(boxes)}</div>'


def _read(name: str) -> str:
    return files("steelyard.report").joinpath(name).read_text(encoding="utf-8")


def _fill(template: str, parts: dict[str, str]) -> str:
    """Replace {{name}} in one pass, so that braces inside a user's text are never taken for a place."""
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)
