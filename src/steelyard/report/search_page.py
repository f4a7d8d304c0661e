"""The page of a search."""

from __future__ import annotations

import re
from html import escape

from steelyard.quoting import printable
from steelyard.report.details import scenario_yaml
from steelyard.report.frame import Page, made_with_seed
from steelyard.report.markup import bar_cell, chart_boxes, copied, html_table
from steelyard.report.search import level_lines
from steelyard.report.verdict import Limit
from steelyard.search.answer import Answer, LevelAnswer
from steelyard.search.kinds import MARGIN, MARGIN_ALONE
from steelyard.words import count, dollars, plural, seconds, significant

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
    spec = answer.found.scenario.search
    return Page(
        title=f"{answer.found.scenario.name}: which fleet to buy",
        lede=(f"objective {spec.objective}", f"at most {plural(spec.gpus, 'GPU')}", _considered(answer)),
        top="".join(_answer(answer, level) for level in answer.levels),
        sections={
            "Fleets": "".join(_level(answer, level) for level in answer.levels),
            "Candidates": _candidates(answer),
            "Scenario": copied(scenario_yaml(answer.found.scenario)),
        },
        made=made_with_seed(answer.found.scenario.seed),
    ).html()


def _considered(answer: Answer) -> str:
    return f"{count(answer.found.considered)} candidates"


def _answer(answer: Answer, level: LevelAnswer) -> str:
    """What to buy at a level, what binds it, and how sure that is."""
    _, *rest = level_lines(answer, level)
    items = "".join(f"<li>{escape(printable(_sentence(line.strip())))}</li>" for line in rest)
    return f'<section class="verdict"><p>{_lead(level)}</p><ul class="told">{items}</ul></section>'


def _lead(level: LevelAnswer) -> str:
    best, name = level.level.best, f"{escape(level.level.name)}: " if level.level.name else ""
    if best is None:
        return f'{name}<strong class="missed">No candidate meets the limits at any rate.</strong>'
    fleet = escape(printable(f"{best.name}, {best.architecture}"))
    return (
        f"{name}<strong>{fleet}</strong>: {dollars(best.usd_per_hour)} an hour for {significant(best.rate)} requests/s."
    )


def _sentence(line: str) -> str:
    """A line of the terminal as a sentence, with the names of limits as people write them."""
    told = re.sub(r"\b([a-z0-9]+)_(p\d+|mean)\b", lambda found: Limit.label_of(found[0]), line)
    return f"{told[:1].upper()}{told[1:]}."


def _level(answer: Answer, level: LevelAnswer) -> str:
    plots, name = answer.found.plot, level.level.name
    title = f"<h3>{escape(name)}</h3>" if name else ""
    return title + chart_boxes([plots.frontier(name), plots.fleets(name)], "two") + _table(level)


def _table(level: LevelAnswer) -> str:
    choices = level.level.choices
    most = max((each.output_tokens_per_s for each in choices), default=0.0)
    rows = []
    for each in choices:
        latencies = ", ".join(f"{Limit.label_of(name)} {seconds(value)}" for name, value in each.outcome.values.items())
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
    return html_table(_COLUMNS, rows) if rows else ""


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
            count(groups.get(name, 0) - tally.by_bound - tally.by_estimate - tally.simulated),
        ]
        for name, tally in answer.found.tallies.items()
    ]
    head = (
        "architecture",
        "can be built",
        "ruled out by a bound",
        "by the estimate",
        "by a short run",
        "simulated whole",
        "in runs",
        "not tried",
    )
    space = answer.found.space
    note = (
        f"<p>Of {count(space.considered)} candidates {count(space.no_room)} do not fit the memory of their GPUs, and "
        f"{count(space.refused)} have degrees or settings that do not go together. A bound, in requests/s, is sound: "
        f"no simulation within the limits is above it. Estimates and short runs are not. An estimate from costs counts "
        f"{MARGIN} times, and one from a simulation of a few engines of a kind {MARGIN_ALONE} times.</p>"
    )
    return note + html_table(head, rows)
