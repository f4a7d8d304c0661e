"""The run on one screen of a terminal, 80 columns wide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from steelyard.report.by_model import MODELS_HEAD, ON_A_TERMINAL, model_rows
from steelyard.report.changes import EVENTS_HEAD, SERVING_HEAD, crash_line, event_rows, serving_rows
from steelyard.report.pools import (
    LINKS_HEAD,
    POOLS_HEAD,
    STEP_TIME_HEAD,
    acceptance_line,
    link_rows,
    pool_rows,
    step_time_rows,
    wait_lines,
)
from steelyard.report.tiers import TIERS_HEAD, tier_rows
from steelyard.report.verdict import (
    METRICS,
    PERCENTILES,
    bottleneck_line,
    first_uses_line,
    fleet_line,
    limits,
    metrics,
    silicon_line,
    slo_line,
    sources_line,
    steady_line,
    unserved_lines,
    workload_line,
)
from steelyard.words import UNKNOWN, Share, byte_size, count, dollars, percent, seconds, significant

if TYPE_CHECKING:
    from steelyard.sim import Result, Summary
    from steelyard.sim.summary import Intervals, Throughput

_MOST_NOTES = 8
_MOST_REASONS = 4
_MOST_EVENTS = 8
_HUES = {
    "measured": "green",
    "interpolated": "blue",
    "extrapolated": "yellow",
    "transferred": "magenta",
    "analytic": "bright_black",
}
_BAR_CELLS = 60
_RATES = ("requests/s", "tokens/s in", "tokens/s out", "  per GPU", "$/M tokens", "  output")
# One character for one, so that columns stay aligned on ASCII terminals.
_ASCII = str.maketrans("✓✗×·–µ≤█→", "+xx|-u<#>")


def print_summary(result: Result, console: Console) -> None:
    """Print latency, throughput, limits, resources and notes."""
    _print(Group(*_parts(result)), console)


def print_intervals(result: Result, console: Console) -> None:
    """Print the intervals alone: they are known later than the figures."""
    if result.summary.intervals is not None:
        _print(_sure(result.summary.intervals), console)


def _print(page: RenderableType, console: Console) -> None:
    if not console.options.ascii_only:
        console.print(page)
        return
    with console.capture() as capture:
        console.print(page)
    plain = capture.get().translate(_ASCII)
    console.file.write(plain.encode("ascii", errors="replace").decode())


def _parts(result: Result) -> Iterator[RenderableType]:
    summary = result.summary
    yield Text.assemble(("Steelyard  ", "bold blue"), (summary.name, "bold"))
    yield Text(fleet_line(summary))
    yield Text(workload_line(result), style="dim")
    yield ""
    yield _latency(summary)
    yield ""
    yield _two_columns(_throughput(summary), _resources(summary))
    yield ""
    for table in _tables(result):
        yield table
        yield ""
    remarks = {**wait_lines(summary), "Crashes": crash_line(result), "First uses": first_uses_line(summary)}
    remarks["Drafts"] = acceptance_line(summary)
    for label, remark in remarks.items():
        if remark:
            yield _labelled(label, Text(remark))
    yield _labelled("Steady", Text(steady_line(summary), style="" if summary.steady else "yellow"))
    if summary.bottleneck is not None:
        yield _labelled("Bottleneck", Text(bottleneck_line(summary)))
    if summary.outcomes.finished < summary.requests:
        yield _labelled("Not served", Group(*map(Text, unserved_lines(result, _MOST_REASONS))))
    yield _labelled("SLO", _slo(summary))
    if summary.intervals is not None:
        yield _sure(summary.intervals)
    yield _labelled("Step times", _provenance(result))
    if result.notes:
        yield _labelled("Notes", _notes(result.notes))


def _tables(result: Result) -> Iterator[RenderableType]:
    """Tables that only some fleets have."""
    summary, events = result.summary, event_rows(result.scenario)
    tables: list[tuple[Sequence[str], Sequence[Sequence[str | Share]]]] = [
        (MODELS_HEAD[:ON_A_TERMINAL], [row[:ON_A_TERMINAL] for row in model_rows(summary)]),
        (POOLS_HEAD, pool_rows(summary)),
        (LINKS_HEAD, link_rows(summary)),
        (STEP_TIME_HEAD, step_time_rows(summary)),
        (TIERS_HEAD, tier_rows(summary)),
        (SERVING_HEAD, serving_rows(summary)),
        (EVENTS_HEAD, events[:_MOST_EVENTS]),
    ]
    for head, rows in tables:
        if rows:
            yield _plain_table(head, rows)
    if len(events) > _MOST_EVENTS:
        yield Text(f"and {count(len(events) - _MOST_EVENTS)} more in the scenario")


def _latency(summary: Summary) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("Latency", width=11)
    for name in PERCENTILES:
        table.add_column(name, justify="right", width=8)
    for metric, (short, _) in metrics(summary).items():
        table.add_row(short, *map(seconds, summary.latencies[metric].levels.values()))
    return table


def _throughput(summary: Summary) -> Table:
    """Rates of the steady window, if there is one, and of the whole run."""
    steady, outcomes = summary.steady, summary.outcomes.to_dict()
    lost = [kind for kind, number in outcomes.items() if number and kind != "finished"]
    counts = [("requests", "", count(summary.requests))]
    if steady is not None:
        counts = [("requests", count(steady.requests), count(summary.requests))]
    counts += [(f"  {kind}", "", count(outcomes[kind])) for kind in (["finished", *lost] if lost else [])]
    counts.append(("duration", "" if steady is None else seconds(steady.seconds), seconds(summary.duration_s)))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", expand=True)
    for i, title in enumerate(("Throughput", "steady", "whole run")):
        table.add_column(title, justify="right" if i else "left", no_wrap=True)
    for row in counts:
        table.add_row(*row)
    whole = _rates(summary.throughput, summary.cost.usd_per_million_tokens, summary.cost.usd_per_million_output_tokens)
    settled = [UNKNOWN] * len(whole)
    if steady is not None:
        settled = _rates(steady.throughput, steady.usd_per_million_tokens, steady.usd_per_million_output_tokens)
    for row in zip(_RATES, settled, whole, strict=True):
        table.add_row(*row)
    return table


def _rates(rates: Throughput, usd: float | None, usd_out: float | None) -> list[str]:
    """In the order of _RATES."""
    figures = (
        rates.requests_per_s,
        rates.input_tokens_per_s,
        rates.output_tokens_per_s,
        rates.output_tokens_per_s_per_gpu,
    )
    return [*map(significant, figures), dollars(usd), dollars(usd_out)]


def _resources(summary: Summary) -> Table:
    kv = summary.kv
    return _facts(
        "Resources",
        [
            ("KV use", f"{percent(kv.mean_use)}, peak {percent(kv.peak_use)}"),
            ("KV blocks", f"{count(kv.blocks_per_replica)}, {byte_size(summary.memory.kv_bytes)}"),
            ("prefix hits", percent(summary.prefix_cache.hit_rate)),
            ("preemptions", count(summary.preemptions)),
            ("busy", percent(summary.busy)),
            ("MFU, MBU", f"{percent(summary.mfu)}, {percent(summary.mbu)}"),
            ("GPU-hours", f"{significant(summary.gpu_hours)}, {dollars(summary.cost.usd)}"),
            ("steps", count(summary.steps)),
        ],
    )


def _plain_table(head: Sequence[str], rows: Sequence[Sequence[str | Share]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for i, title in enumerate(head):
        table.add_column(title, justify="right" if i else "left", overflow="ellipsis" if i else "fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    return table


def _facts(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold", expand=True)
    table.add_column(title, no_wrap=True)
    table.add_column("", justify="right")
    for name, value in rows:
        table.add_row(name, value)
    return table


def _two_columns(left: Table, right: Table) -> Table:
    grid = Table.grid(padding=(0, 4, 0, 0))
    grid.add_column(width=38)
    grid.add_column(width=36)
    grid.add_row(left, right)
    return grid


def _labelled(label: str, content: RenderableType) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=10, style="bold")
    grid.add_column(overflow="fold")
    grid.add_row(label, content)
    return grid


def _slo(summary: Summary) -> RenderableType:
    found = limits(summary)
    goodput = summary.goodput if summary.steady is None else summary.steady.goodput
    share, rate = goodput.share, goodput.requests_per_s
    if not found and share is None:
        return Text("no limits set", style="dim")
    lines = []
    if found:
        kept = all(limit.met for limit in found)
        lines.append(Text(slo_line(found), style="bold green" if kept else "bold red"))
    if share is not None:
        when = "over the whole run" if summary.steady is None else "while steady"
        lines.append(Text(f"Goodput {significant(rate)} requests/s, {percent(share)} of requests, {when}."))
    for limit in found:
        mark = ("✓ ", "green") if limit.met else ("✗ ", "red")
        lines.append(Text.assemble(mark, (limit.label, "bold"), f"  {limit.finding}"))
    return Group(*lines)


def _sure(found: Intervals) -> RenderableType:
    return _labelled(f"{found.share:.0%} sure", _intervals(found))


def _intervals(found: Intervals) -> RenderableType:
    lines = []
    for metric in ("ttft", "tpot", "e2e"):
        if f"{metric}.mean" in found.bounds:
            mean, p99 = (_between(found.bounds[f"{metric}.{name}"], seconds) for name in ("mean", "p99"))
            lines.append(f"{METRICS[metric][0]} mean {mean}, p99 {p99}")
    name, when = "steady.output_tokens_per_s", "steady"
    if name not in found.bounds:
        name, when = "throughput.output_tokens_per_s", "whole run"
    lines.append(f"tokens/s out, {when}, {_between(found.bounds[name], significant)}")
    return Group(*(Text(line) for line in lines))


def _between(interval: Sequence[float], words: Callable[[float], str]) -> str:
    return " – ".join(words(end) for end in interval)


def _provenance(result: Result) -> RenderableType:
    summary, hint = result.summary, silicon_line(result)
    shares: dict[str, float] = summary.provenance.to_dict()
    bar, edge = Text(), 0.0
    for name, share in shares.items():
        cells = round((edge + share) * _BAR_CELLS) - round(edge * _BAR_CELLS)
        edge += share
        bar.append("█" * cells, style=_HUES[name])
    legend = [Text(f"{percent(share)} {name}", style=_HUES[name]) for name, share in shares.items() if share]
    more = [Text(hint, style="yellow")] if hint else []
    return Group(bar, Text(", ").join(legend), Text(sources_line(summary), style="dim"), *more)


def _notes(notes: Sequence[str]) -> Table:
    shown = list(notes[:_MOST_NOTES])
    if len(notes) > _MOST_NOTES:
        shown.append(f"and {count(len(notes) - _MOST_NOTES)} more in summary.json")
    grid = Table.grid(padding=(0, 1, 0, 0))
    for note in shown:
        grid.add_row(Text("·"), Text(note, style="yellow"))
    return grid
