"""Measured against simulated: a table on the terminal, and a page with both curves in every figure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steelyard.files.writing import write_text
from steelyard.plot import Axis, Bar, BarChart
from steelyard.plot.marks import Hue
from steelyard.quoting import printable
from steelyard.report.details import scenario_yaml
from steelyard.report.frame import Page
from steelyard.report.markup import chart_boxes, copied, html_table
from steelyard.sim.intervals import STATED
from steelyard.validate.compare import LATENCIES, STATISTICS, Pair, Validation, WorkloadComparison
from steelyard.validate.plots import latencies, queues
from steelyard.words import UNKNOWN, count, percent, plural, seconds, significant

_JUDGED = ("mean", "p95")
_HUES: dict[str, Hue] = {"ttft": "1", "tpot": "2", "e2e": "3"}
SHORT = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
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
    """The whole page: how far off the figures are, then per workload the distributions, the queues and all errors."""
    return Page(
        title=f"{validation.folder.resolve().name}, measured and simulated",
        lede=tuple(filter(None, (validation.gpu, validation.engine, _replayed(validation)))),
        top=_verdict(validation),
        sections={
            "Errors": chart_boxes([error_chart(validation)], "one"),
            **{each.name: _section(number, each) for number, each in enumerate(validation.workloads)},
        },
    ).html()


def _replayed(validation: Validation) -> str:
    return f"{plural(len(validation.workloads), 'captured workload')} replayed"


def _verdict(validation: Validation) -> str:
    """The typical and the worst error of each latency's mean and p95, and how many intervals hold."""
    told = []
    for metric in LATENCIES:
        errors = [
            (abs(error), each.name, statistic)
            for each in validation.workloads
            for statistic in _JUDGED
            if (error := each.latency[metric][statistic].error) is not None
        ]
        if errors:
            worst, name, statistic = max(errors)
            typical = median(error for error, _, _ in errors)
            told.append(
                f"{SHORT[metric]}: {_off(typical)} off in the median of {plural(len(errors), 'figure')} "
                f"({' and '.join(_JUDGED)} of each workload), at most {_off(worst)} ({statistic} of {name})"
            )
    inside, of = validation.coverage
    first = f"{inside} of {of} figures lie in the interval stated for them; {STATED:.0%} should." if of else ""
    items = "".join(f"<li>{escape(printable(line))}</li>" for line in told)
    lead = f"<p><b>{escape(first)}</b></p>" if first else ""
    return f'<section class="verdict">{lead}<ul class="told">{items}</ul></section>'


def _off(error: float) -> str:
    return f"{error * 100:.1f} %"


def error_chart(validation: Validation) -> BarChart:
    """The error of each latency's mean and p95, workload by workload."""
    bars = [
        Bar(f"{each.name}, {SHORT[metric]} {statistic}", error, signed_percent(error), _HUES[metric])
        for each in validation.workloads
        for metric in LATENCIES
        for statistic in _JUDGED
        if (error := each.latency[metric][statistic].error) is not None
    ]
    span = max([0.05, *(1.05 * abs(bar.value) for bar in bars)])
    along = Axis("simulated over measured, less one", "change", -span, span)
    return BarChart("errors", "Errors: simulated over measured, less one", along, tuple(bars))


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
            yield _Row.of(f"{SHORT[metric]} {statistic}", each.latency[metric][statistic], seconds)
    for name, (title, write) in _FIGURES.items():
        yield _Row.of(title, each.figures[name], write)


def _section(number: int, each: WorkloadComparison) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in each.notes)
    charts = chart_boxes(latencies(each, number), "three") + chart_boxes(queues(each, number), "two")
    told = f'<section class="notes"><h3>Notes</h3><ul>{notes}</ul></section>' if notes else ""
    shares = ", ".join(f"{percent(share)} {source}" for source, share in each.provenance.items() if share)
    scenario = f"<details><summary>Scenario</summary>{copied(scenario_yaml(each.scenario))}</details>"
    return f"{charts}{told}{_table(each)}<p>Step times: {escape(shares)}.</p>{scenario}"


def _table(each: WorkloadComparison) -> str:
    rows = (
        (
            f'<th scope="row">{escape(row.name)}</th>',
            *(row.measured, row.simulated),
            _cell(row.error, row.far_off),
            _cell(row.interval, row.outside),
        )
        for row in _rows(each)
    )
    return html_table(("figure", "measured", "simulated", "error", f"{STATED:.0%} sure"), rows)


def _cell(text: str, off: bool) -> str:
    return f'<td class="off">{text}</td>' if off else text
