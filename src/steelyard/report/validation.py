"""Measured against simulated: a table on the terminal, and a page with both curves in every figure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steelyard.files.reading import read_text
from steelyard.files.writing import write_text
from steelyard.report.overlay import overlaid_cdf, overlaid_load
from steelyard.report.words import UNKNOWN, count, seconds, significant
from steelyard.sim.intervals import STATED
from steelyard.validate.compare import LATENCIES, STATISTICS, Pair, Validation, WorkloadComparison

_TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End to end"}
_SHORT = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
_FIGURES: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "throughput": ("output tokens/s", significant),
    "makespan": ("makespan", seconds),
    "kv_blocks": ("KV blocks", count),
    "finished": ("finished requests", count),
    "preemptions": ("preemptions", count),
    "prefix_hit_tokens": ("prefix hit tokens", count),
}
_FAR_OFF = 0.1  # from here on an error is shown in red


def print_validation(validation: Validation, console: Console) -> None:
    """A table per workload."""
    for each in validation.workloads:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
        table.title, table.title_justify, table.title_style = Text(each.name), "left", "bold blue"
        for heading in ("", "measured", "simulated", "error", f"{STATED:.0%} sure"):
            table.add_column(heading, justify="right" if heading else "left", min_width=10)
        for row in _rows(each):
            error = Text(row.error, style="red" if row.far_off else "")
            table.add_row(row.name, row.measured, row.simulated, error, _outside(row))
        console.print(table)
        for note in each.notes:
            console.print(Text(f"note: {note}", style="yellow"))
        console.print()
    inside, of = validation.coverage
    if of:
        console.print(f"{inside} of {of} figures lie in the interval stated for them ({STATED:.0%} should)")


def _outside(row: _Row) -> Text:
    return Text(row.interval, style="yellow" if row.outside else "")


def signed_percent(error: float | None) -> str:
    """A relative error with its sign."""
    return UNKNOWN if error is None else f"{error * 100:+.1f} %"


def write_validation_page(validation: Validation, path: Path) -> None:
    """The page as one file."""
    write_text(path, validation_page(validation))


def validation_page(validation: Validation) -> str:
    """The whole page: per workload the errors, the distributions and the queues over time."""
    parts = {
        "title": escape(f"{validation.folder.resolve().name}, measured and simulated"),
        "lede": escape(f"{validation.gpu}, {len(validation.workloads)} captured workloads replayed"),
        "nav": "".join(f'<a href="#w{i}">{escape(each.name)}</a>' for i, each in enumerate(validation.workloads)),
        "body": "\n".join(_section(i, each) for i, each in enumerate(validation.workloads)),
        "version": escape(version("steelyard")),
        "css": _read("page.css"),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _read("validation.html"))


def _read(name: str) -> str:
    return read_text(Path(__file__).parent / name)


@dataclass(frozen=True)
class _Row:
    """One figure as text."""

    name: str
    measured: str
    simulated: str
    error: str
    interval: str
    far_off: bool
    outside: bool

    @classmethod
    def of(cls, name: str, pair: Pair, write: Callable[[float | None], str]) -> _Row:
        error = pair.error
        return cls(
            name=name,
            measured=write(pair.measured),
            simulated=write(pair.simulated),
            error=signed_percent(error),
            interval="" if pair.interval is None else " – ".join(write(end) for end in pair.interval),
            far_off=error is not None and abs(error) > _FAR_OFF,
            outside=pair.inside is False,
        )


def _rows(each: WorkloadComparison) -> Iterator[_Row]:
    for metric in LATENCIES:
        for statistic in STATISTICS:
            yield _Row.of(f"{_SHORT[metric]} {statistic}", each.latency[metric][statistic], seconds)
    for name, (title, write) in _FIGURES.items():
        yield _Row.of(title, each.figures[name], write)


def _section(number: int, each: WorkloadComparison) -> str:
    cdfs = (_figure(_TITLES[name], overlaid_cdf(*each.samples[name])) for name in LATENCIES)
    loads = (
        _figure("Requests running", overlaid_load(each.load, "running")),
        _figure("Requests waiting", overlaid_load(each.load, "waiting")),
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in each.notes)
    return (
        f'<section id="w{number}"><h2>{escape(each.name)}</h2>'
        f'<div class="figures three">{"".join(cdfs)}</div><div class="figures two">{"".join(loads)}</div>'
        f"{_table(each)}{f'<ul class=notes>{notes}</ul>' if notes else ''}</section>"
    )


def _figure(title: str, plot: str) -> str:
    legend = '<span class="key k1">measured</span><span class="key k2">simulated</span>'
    return (
        f"<figure><figcaption>{escape(title)}</figcaption>"
        f'<div class="readout">{legend}</div><div class="plot">{plot}</div></figure>'
    )


def _table(each: WorkloadComparison) -> str:
    rows = "".join(
        f"<tr><th>{escape(row.name)}</th><td>{row.measured}</td><td>{row.simulated}</td>"
        f"<td{' class=off' if row.far_off else ''}>{row.error}</td>"
        f"<td{' class=off' if row.outside else ''}>{row.interval}</td></tr>"
        for row in _rows(each)
    )
    heads = ("", "measured", "simulated", "error", f"{STATED:.0%} sure")
    head = f"<tr>{''.join(f'<th>{name}</th>' for name in heads)}</tr>"
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>'
