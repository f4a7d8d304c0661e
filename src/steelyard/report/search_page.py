"""The page of a search: one file without scripts that needs no network."""

from __future__ import annotations

import re
from html import escape
from importlib.metadata import version
from pathlib import Path

from steelyard.files.reading import read_text
from steelyard.report.markup import bar_cell, html_table
from steelyard.report.search import level_lines
from steelyard.report.words import count, dollars, plural, seconds, significant
from steelyard.search.answer import Answer, LevelAnswer
from steelyard.search.contest import MARGIN

_COLUMNS = (
    "architecture",
    "fleet",
    "requests/s",
    "output tokens/s",
    "GPUs",
    "$ an hour",
    "latencies",
    "bound",
    "estimate",
)


def search_page(answer: Answer) -> str:
    """The whole page."""
    sections = {"Answer": _answers(answer), "Fleets": _fleets(answer), "Candidates": _candidates(answer)}
    spec = answer.found.scenario.search
    title = f"{answer.found.scenario.name}: which fleet to buy"
    lede = (
        f"objective {spec.objective}, at most {plural(spec.gpus, 'GPU')}, {count(answer.found.considered)} candidates"
    )
    parts = {
        "title": escape(title),
        "lede": escape(lede),
        "nav": "".join(f'<a href="#{name.lower()}">{name}</a>' for name in sections),
        "body": "\n".join(
            f'<section id="{name.lower()}"><h2>{name}</h2>{text}</section>' for name, text in sections.items()
        ),
        "version": escape(version("steelyard")),
        "css": _read("page.css"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _read("serving_compare.html"))


def _read(name: str) -> str:
    return read_text(Path(__file__).parent / name)


def _answers(answer: Answer) -> str:
    shown = []
    for level in answer.levels:
        first, *rest = level_lines(answer, level)
        items = "".join(f"<li>{escape(line.strip())}</li>" for line in rest)
        shown.append(f'<section class="verdict"><p><b>{escape(first)}</b></p><ul class="told">{items}</ul></section>')
    return "".join(shown)


def _fleets(answer: Answer) -> str:
    return "".join(_table(level) for level in answer.levels)


def _table(level: LevelAnswer) -> str:
    choices = level.level.choices
    most = max((each.output_tokens_per_s for each in choices), default=0.0)
    rows = []
    for each in choices:
        latencies = ", ".join(f"{name} {seconds(value)}" for name, value in each.outcome.values.items())
        rows.append(
            [
                escape(each.architecture),
                escape(each.name),
                significant(each.rate),
                bar_cell(count(each.output_tokens_per_s), each.output_tokens_per_s, most),
                count(each.gpus),
                dollars(each.usd_per_hour),
                escape(latencies),
                significant(each.bound),
                significant(each.estimate),
            ]
        )
    title = f"<h3>{escape(level.level.name)}</h3>" if level.level.name else ""
    return title + html_table(_COLUMNS, rows)


def _candidates(answer: Answer) -> str:
    """What became of the candidates, by architecture."""
    groups: dict[str, int] = {}
    for group in answer.found.space.groups:
        groups[group.architecture] = groups.get(group.architecture, 0) + len(group)
    rows = [
        [
            escape(name),
            count(groups.get(name, 0)),
            count(tally.by_bound),
            count(tally.by_estimate),
            count(tally.by_short),
            count(tally.simulated - tally.by_short),
            count(tally.whole),
        ]
        for name, tally in answer.found.tallies.items()
    ]
    head = (
        "architecture",
        "can be built",
        "ruled out by a bound",
        "by the estimate",
        "by a short run",
        "by whole runs",
        "whole runs",
    )
    space = answer.found.space
    note = (
        f"<p>Of {count(space.considered)} candidates {count(space.no_room)} do not fit the memory of their GPUs, and "
        f"{count(space.refused)} have degrees or settings that do not go together. A bound is sound: no simulation "
        f"within the limits is above it. Estimates and short runs are not; an estimate counts {MARGIN} times.</p>"
    )
    return note + html_table(head, rows)
