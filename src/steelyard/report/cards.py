"""The top of the page: the figures people look for first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

from steelyard.report.markup import Part, share_bar
from steelyard.report.verdict import PROVENANCE, Limit, sources_line
from steelyard.report.words import UNKNOWN, byte_size, count, dollars, percent, pick, seconds, significant

Summary = Mapping[str, Any]


def cards(summary: Summary) -> str:
    """Eight cards, each one figure large and the ones around it small."""
    made = [
        _latency("ttft", "Time to first token", summary),
        _latency("tpot", "Time per output token", summary),
        _throughput(summary),
        _goodput(summary),
        _cost(summary),
        _kv(summary),
        _prefix(summary),
        _pressure(summary),
    ]
    return f'<section class="cards" aria-label="Headline figures">{"".join(made)}</section>'


def slo_panel(found: Sequence[Limit]) -> str:
    """Each limit with its mark and how much of it the run uses; empty without limits."""
    return f'<ul class="slo">{"".join(map(_limit, found))}</ul>' if found else ""


def provenance_bar(summary: Summary) -> str:
    """Where the step times come from, as shares of one bar."""
    shares = {name: pick(summary, "provenance", name) or 0.0 for name in PROVENANCE}
    parts = [Part(name, shares[name], name, meaning) for name, meaning in PROVENANCE.items()]
    return share_bar("Where the step times come from", parts, sources_line(summary))


def _card(title: str, figure: str, unit: str, lines: list[str]) -> str:
    small = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return (
        f'<article class="card"><h3>{escape(title)}</h3>'
        f'<p class="figure">{escape(figure)} <small>{escape(unit)}</small></p><ul>{small}</ul></article>'
    )


def _latency(metric: str, title: str, summary: Summary) -> str:
    p50, p95, p99 = (seconds(pick(summary, metric, name)) for name in ("p50", "p95", "p99"))
    return _card(title, p50, "median", [*_sure(summary, metric, "p50", seconds), f"p95 {p95}", f"p99 {p99}"])


def _sure(summary: Summary, metric: str, name: str, words: Callable[[float | None], str]) -> list[str]:
    """Where a figure most likely lies, in a run that looked."""
    if summary["intervals"] is None or metric not in summary["intervals"]:
        return []
    low, high = summary["intervals"][metric][name]
    return [f"{words(low)} – {words(high)} ({summary['intervals']['share']:.0%} sure)"]


def _throughput(summary: Summary) -> str:
    rate = {name: significant(pick(summary, "throughput", name)) for name in summary["throughput"]}
    return _card(
        "Throughput",
        rate["output_tokens_per_s"],
        "tokens/s out",
        [
            *_sure(summary, "throughput", "output_tokens_per_s", significant),
            f"{rate['requests_per_s']} requests/s, {rate['input_tokens_per_s']} tokens/s in",
            f"{rate['output_tokens_per_s_per_gpu']} tokens/s out per GPU",
        ],
    )


def _goodput(summary: Summary) -> str:
    share, rate = pick(summary, "goodput", "share"), pick(summary, "goodput", "requests_per_s")
    if share is None:
        return _card("Goodput", UNKNOWN, "no limits set", ["slo: in the scenario sets them"])
    lines = [f"{significant(rate)} requests/s within every limit"]
    return _card("Goodput", percent(share), "of requests", lines)


def _cost(summary: Summary) -> str:
    output = dollars(pick(summary, "cost", "usd_per_million_output_tokens"))
    return _card(
        "Cost",
        dollars(pick(summary, "cost", "usd_per_million_tokens")),
        "per million tokens",
        [
            f"{output} per million output tokens",
            f"{significant(pick(summary, 'gpu_hours'))} GPU-hours, {dollars(pick(summary, 'cost', 'usd'))}",
        ],
    )


def _kv(summary: Summary) -> str:
    blocks = count(pick(summary, "kv", "blocks_per_replica"))
    room = byte_size(pick(summary, "memory", "kv_bytes"))
    return _card(
        "KV cache in use",
        percent(pick(summary, "kv", "mean_use")),
        "mean",
        [f"peak {percent(pick(summary, 'kv', 'peak_use'))}", f"{blocks} blocks ({room}) per replica"],
    )


def _prefix(summary: Summary) -> str:
    hits, asked = (count(pick(summary, "prefix_cache", name)) for name in ("hit_tokens", "prompt_tokens"))
    share = percent(pick(summary, "prefix_cache", "hit_rate"))
    return _card("Prefix cache hits", share, "of prompt tokens", [f"{hits} of {asked} tokens"])


def _pressure(summary: Summary) -> str:
    busy, mfu, mbu = (percent(pick(summary, name)) for name in ("busy", "mfu", "mbu"))
    return _card(
        "Preemptions",
        count(pick(summary, "preemptions")),
        "",
        [f"engines busy {busy} of the time", f"MFU {mfu}, MBU {mbu}"],
    )


def _limit(limit: Limit) -> str:
    """A bar on which the limit always stands at the same place, four fifths along."""
    state, mark, word = ("met", "✓", "met") if limit.met else ("missed", "✗", "missed")
    gauge = ""
    if limit.value is not None:
        filled = min(100.0, 80 * limit.value / limit.limit)
        gauge = f'<span class="gauge" aria-hidden="true"><i style="width:{filled:.2f}%"></i></span>'
    return (
        f'<li class="{state}"><b class="mark" aria-hidden="true">{mark}</b> <b>{escape(limit.label)}</b> '
        f'<span class="sr">{word}: </span>{escape(limit.finding)}{gauge}</li>'
    )
