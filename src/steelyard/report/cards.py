"""The top of the page: the figures people look for first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from steelyard.report.verdict import Limit
from steelyard.words import UNKNOWN, byte_size, count, dollars, percent, seconds, significant

if TYPE_CHECKING:
    from steelyard.sim import Summary


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


def _card(title: str, figure: str, unit: str, lines: list[str]) -> str:
    small = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return (
        f'<article class="card"><h3>{escape(title)}</h3>'
        f'<p class="figure">{escape(figure)} <small>{escape(unit)}</small></p><ul>{small}</ul></article>'
    )


def _latency(metric: str, title: str, summary: Summary) -> str:
    found = summary.latencies[metric]
    p50, p95, p99 = map(seconds, (found.p50, found.p95, found.p99))
    return _card(title, p50, "median", [*_sure(summary, f"{metric}.p50", seconds), f"p95 {p95}", f"p99 {p99}"])


def _sure(summary: Summary, figure: str, words: Callable[[float | None], str]) -> list[str]:
    """The interval of a figure, if the run has intervals."""
    if summary.intervals is None or figure not in summary.intervals.bounds:
        return []
    low, high = summary.intervals.bounds[figure]
    return [f"{words(low)} – {words(high)} ({summary.intervals.share:.0%} sure)"]


def _throughput(summary: Summary) -> str:
    whole, steady = summary.throughput, summary.steady
    rate = whole if steady is None else steady.throughput
    name = "throughput.output_tokens_per_s" if steady is None else "steady.output_tokens_per_s"
    return _card(
        "Throughput" + _when(summary),
        significant(rate.output_tokens_per_s),
        "tokens/s out",
        [
            *_sure(summary, name, significant),
            f"{significant(rate.requests_per_s)} requests/s, {significant(rate.input_tokens_per_s)} tokens/s in",
            f"{significant(rate.output_tokens_per_s_per_gpu)} tokens/s out per GPU",
            *([] if steady is None else [f"whole run {significant(whole.output_tokens_per_s)} tokens/s out"]),
        ],
    )


def _when(summary: Summary) -> str:
    """Which part of the run a card's large figure is of."""
    return ", whole run" if summary.steady is None else ", steady"


def _goodput(summary: Summary) -> str:
    goodput = summary.goodput if summary.steady is None else summary.steady.goodput
    share = goodput.share
    if share is None:
        return _card("Goodput", UNKNOWN, "no limits set", ["slo: in the scenario sets them"])
    lines = [f"{significant(goodput.requests_per_s)} requests/s within every limit"]
    if summary.steady is not None:
        lines.append(f"whole run {percent(summary.goodput.share)}")
    return _card("Goodput" + _when(summary), percent(share), "of requests", lines)


def _cost(summary: Summary) -> str:
    cost = summary.cost
    per = cost if summary.steady is None else summary.steady
    return _card(
        "Cost" + _when(summary),
        dollars(per.usd_per_million_tokens),
        "per M tokens",
        [
            f"{dollars(per.usd_per_million_output_tokens)} per M output tokens",
            *(
                []
                if per is cost
                else [
                    f"whole run {dollars(cost.usd_per_million_tokens)} and "
                    f"{dollars(cost.usd_per_million_output_tokens)}"
                ]
            ),
            f"{significant(summary.gpu_hours)} GPU-hours, {dollars(cost.usd)}",
        ],
    )


def _kv(summary: Summary) -> str:
    blocks, room = count(summary.kv.blocks_per_replica), byte_size(summary.memory.kv_bytes)
    return _card(
        "KV cache in use",
        percent(summary.kv.mean_use),
        "mean",
        [f"peak {percent(summary.kv.peak_use)}", f"{blocks} blocks ({room}) per replica"],
    )


def _prefix(summary: Summary) -> str:
    found = summary.prefix_cache
    tokens = f"{count(found.hit_tokens)} of {count(found.prompt_tokens)} tokens"
    return _card("Prefix cache hits", percent(found.hit_rate), "of prompt tokens", [tokens])


def _pressure(summary: Summary) -> str:
    busy, mfu, mbu = map(percent, (summary.busy, summary.mfu, summary.mbu))
    return _card(
        "Preemptions",
        count(summary.preemptions),
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
