"""The lower half of the page: tables with every number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from steelyard.report.loads import replica_loads, unserved_reasons, workload_shares
from steelyard.report.markup import bar_cell, copied, cut_note, html_table
from steelyard.report.verdict import METRICS, PERCENTILES, metrics
from steelyard.words import (
    as_number,
    byte_size,
    count,
    dollars,
    percent,
    seconds,
    significant,
)

if TYPE_CHECKING:
    from steelyard.scenario.base import Written
    from steelyard.sim import Result, Summary

# Limits that keep the page small for any run. The page says where rows were cut.
_MOST_REPLICAS = 256
_MOST_WORKLOADS = 50
_MOST_REASONS = 20
_MOST_NOTES = 50
_MOST_SCENARIO_CHARACTERS = 60_000

_HEADINGS = {
    "requests": "Requests",
    "throughput": "Throughput, whole run",
    "goodput": "Goodput, whole run",
    "kv": "KV cache",
    "prefix_cache": "Prefix cache",
    "cost": "Cost, whole run",
    "provenance": "Where step times come from",
    "memory": "Memory per GPU",
}
_SHOWN_ELSEWHERE = {
    *("name", "slo", "pools", "links", "models", "dynamics", "by_tier", "intervals", "unsteady", "bottleneck"),
    *METRICS,
}
_ENDINGS: tuple[tuple[str, Callable[[float | None], str]], ...] = (
    ("_bytes", byte_size),
    ("_s", seconds),
    ("_use", percent),
    ("hit_rate", percent),
    ("share", percent),
    ("seconds", seconds),
)
_SHARES = {"mfu", "mbu", "busy", "measured", "interpolated", "extrapolated", "transferred", "analytic"}


def notes_panel(notes: Sequence[str]) -> str:
    """The notes on the figures."""
    if not notes:
        return ""
    shown = [escape(note) for note in notes[:_MOST_NOTES]]
    if len(notes) > _MOST_NOTES:
        shown.append(f"and {count(len(notes) - _MOST_NOTES)} more in summary.json")
    items = "".join(f"<li>{note}</li>" for note in shown)
    return f'<section class="notes"><h3>Notes</h3><ul>{items}</ul></section>'


def workload_table(result: Result) -> str:
    """Figures by workload of a mix, and reasons of unserved requests; empty if there are neither."""
    parts = []
    shares, total = workload_shares(result.requests, _MOST_WORKLOADS)
    if total > 1:
        rows = [
            [
                escape(s.label),
                *map(count, (s.requests, s.finished, s.prompt_tokens, s.output_tokens)),
                *(seconds(v) for pair in (s.ttft, s.tpot, s.e2e) for v in pair or (None, None)),
            ]
            for s in shares
        ]
        head = ["Workload", "requests", "finished", "tokens in", "tokens out"]
        head += [f"{METRICS[name][0]} {p}" for name in ("ttft", "tpot", "e2e") for p in ("p50", "p95")]
        parts.append(html_table(head, rows) + cut_note(len(rows), total, "workloads"))
    reasons = unserved_reasons(result.requests)
    if reasons:
        rows = [[escape(status), count(n), escape(why)] for status, why, n in reasons[:_MOST_REASONS]]
        heading = "<h3>Requests that were not served</h3>"
        table = html_table(["Status", "requests", "reason"], rows, classes="reasons")
        parts.append(heading + table + cut_note(len(rows), len(reasons), "reasons"))
    return "".join(parts)


def replica_table(result: Result) -> str:
    """The load of each replica; empty for a single one."""
    loads = replica_loads(result)
    total = len(loads.requests)
    if total < 2:
        return ""
    shown = np.arange(total)
    cut = ""
    if total > _MOST_REPLICAS:
        by_load = np.argsort(-loads.requests, kind="stable")
        half = _MOST_REPLICAS // 2
        shown = np.concatenate([by_load[:half], by_load[-half:]])
        cut = f"<p>Of {count(total)}, the {half} with the most requests and the {half} with the fewest.</p>"
    pools = _pools_of(result.summary)
    several = len(set(pools)) > 1
    rows = [
        [
            f"<th>{index}</th>",
            *([escape(pools[index])] if several else []),
            bar_cell(count(loads.requests[index]), loads.requests[index], loads.requests.max()),
            bar_cell(count(loads.output_tokens[index]), loads.output_tokens[index], loads.output_tokens.max()),
            bar_cell(percent(loads.busy[index]), loads.busy[index], 1),
            significant(loads.mean_batch[index]),
            count(loads.peak_waiting[index]),
            count(loads.preemptions[index]),
        ]
        for index in shown.tolist()
    ]
    head = [
        "Replica",
        *(["pool"] if several else []),
        "requests",
        "output tokens",
        "busy",
        "mean batch",
        "peak queue",
        "preemptions",
    ]
    fair = (
        f"<p>Requests per replica: {count(loads.requests.min())} to {count(loads.requests.max())}, "
        f"mean {significant(float(loads.requests.mean()))}. "
        f"Busy {percent(float(loads.busy.min()))} to {percent(float(loads.busy.max()))} of the time.</p>"
    )
    return fair + cut + html_table(head, rows, classes="tall")


def _pools_of(summary: Summary) -> list[str]:
    """The pool of each replica."""
    return [pool.name for pool in summary.pools for _ in range(pool.replicas)]


def interval_table(summary: Summary) -> str:
    """Intervals of latencies; empty for a run without intervals."""
    if summary.intervals is None:
        return ""
    bounds = summary.intervals.bounds
    rows = []
    for name, (short, _) in metrics(summary).items():
        found = [bounds.get(f"{name}.{level}") for level in PERCENTILES]
        if any(found):
            cells = (f"{seconds(low)} – {seconds(high)}" for low, high in (each or (None, None) for each in found))
            rows.append([f"<th>{short}</th>", *cells])
    return html_table([f"{summary.intervals.share:.0%} sure", *PERCENTILES], rows)


def all_numbers(summary: Summary) -> str:
    """The whole summary: latencies as one table, the rest in groups under readable names."""
    latency = [
        [
            f"<th>{short} <small>{meaning}</small></th>",
            *map(seconds, summary.latencies[name].levels.values()),
            count(summary.latencies[name].count),
        ]
        for name, (short, meaning) in metrics(summary).items()
    ]
    table = html_table(["Latency", *PERCENTILES, "count"], latency)
    groups: dict[str, list[tuple[str, str]]] = {"Run": []}
    for key, value in summary.to_dict().items():
        if key in _SHOWN_ELSEWHERE:
            continue
        if isinstance(value, Mapping):
            groups[_HEADINGS.get(key, _words(key))] = list(_flat(value))
        else:
            groups["Run"].append((_words(key), _value(key, value)))
    boxes = "".join(_group(title, rows) for title, rows in groups.items() if rows)
    return f'{table}{interval_table(summary)}<div class="groups">{boxes}</div>'


def scenario_text(result: Result) -> str:
    """The scenario as it was given, and below it with every default spelled out."""
    written, full = scenario_yaml(result.scenario), _yaml(result.scenario.model_dump(mode="json"))
    return f"{copied(written)}<details><summary>With every default</summary>{copied(full)}</details>"


def scenario_yaml(scenario: Written) -> str:
    """What a scenario file would say: the keys that were given."""
    return _yaml(scenario.model_dump(mode="json", exclude_unset=True))


def _yaml(data: Any) -> str:
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
    if len(text) > _MOST_SCENARIO_CHARACTERS:
        left_out = count(len(text) - _MOST_SCENARIO_CHARACTERS)
        text = f"{text[:_MOST_SCENARIO_CHARACTERS]}\n# cut here: {left_out} more characters\n"
    return text


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, item in value.items():
        if key in _SHOWN_ELSEWHERE:
            continue
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{_words(key)}, ")
        else:
            yield prefix + _words(key), _value(key, item)


def _value(key: str, value: Any) -> str:
    """The value with its unit, which the ending of its key names."""
    if isinstance(value, str | bool):
        return str(value)
    if isinstance(value, list | tuple):
        return " – ".join(_value(key, item) for item in value)
    number = as_number(value)
    if key == "seed":
        return str(value)
    if key.startswith("usd"):
        return dollars(number)
    if key in _SHARES:
        return percent(number)
    if key.endswith("_per_s") or "_per_s_" in key:
        return f"{significant(number)} /s"
    for ending, wording in _ENDINGS:
        if key.endswith(ending):
            return wording(number)
    return count(number) if number is None or number.is_integer() else significant(number)


def _words(key: str) -> str:
    """`output_tokens_per_s_per_gpu` as a person would write it."""
    text = key
    for ending in ("_bytes", "_per_s", "_s"):
        text = text.removesuffix(ending)
    text = text.replace("_per_s_", "_").replace("_", " ")
    for short, long in (
        ("usd", "US dollars"),
        ("gpu", "GPU"),
        ("gpus", "GPUs"),
        ("mfu", "MFU"),
        ("mbu", "MBU"),
        ("kv", "KV"),
    ):
        text = " ".join(long if word == short else word for word in text.split())
    return text.replace("GPU hours", "GPU-hours")


def _group(title: str, rows: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return f'<div class="group"><h3>{escape(title[:1].upper() + title[1:])}</h3><dl>{items}</dl></div>'
