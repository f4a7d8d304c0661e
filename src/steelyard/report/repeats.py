"""Two captures of one engine side by side, with the prediction: how large its errors are beside the noise."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steelyard.report.validation import SHORT, signed_percent
from steelyard.validate.compare import LATENCIES, STATISTICS, Pair, WorkloadComparison
from steelyard.validate.repeats import STEPS, Difference, RepeatedRun, Repeats
from steelyard.words import UNKNOWN, seconds, significant

_HEADINGS = ("", "measured", "again", "apart", "simulated", "error")


def print_repeats(found: Repeats, predicted: dict[str, WorkloadComparison], console: Console) -> None:
    """A table per workload that both captures have."""
    for run in found.runs:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
        name = run.name if run.names[0] == run.names[1] else " and ".join(run.names)
        table.title, table.title_justify, table.title_style = Text(name), "left", "bold blue"
        for heading in _HEADINGS:
            table.add_column(heading, justify="right" if heading else "left", min_width=9)
        for row in _rows(run, predicted[run.name]):
            table.add_row(*row)
        console.print(table)
        apart = ", ".join(f"{SHORT[metric]} {share * 100:.1f} %" for metric, share in run.by_request.items())
        console.print(Text(f"note: the same request in both, apart by the median: {apart}", style="yellow"))
        if not run.one_pace:
            over = " and ".join(seconds(each) for each in run.asked_over)
            console.print(
                Text(f"note: the requests came over {over}; throughput and makespan are the client's", style="yellow")
            )
        console.print()
    console.print(Text(f"hosts: {found.hosts}"))
    if found.unmatched:
        console.print(Text(f"in the first capture alone: {', '.join(found.unmatched)}"))


def _rows(run: RepeatedRun, predicted: WorkloadComparison) -> Iterator[tuple[str, ...]]:
    for metric in LATENCIES:
        for statistic in STATISTICS:
            figure = run.figures[f"{metric}.{statistic}"]
            yield (f"{SHORT[metric]} {statistic}", *_cells(figure, predicted.latency[metric][statistic], True))
    yield ("output tokens/s", *_cells(run.figures["throughput"], predicted.figures["throughput"], False))
    yield ("makespan", *_cells(run.figures["makespan"], predicted.figures["makespan"], True))
    for kind, title in STEPS.items():
        yield (title, *_cells(run.figures[kind], None, True))


def _cells(figure: Difference, pair: Pair | None, time: bool) -> tuple[str, ...]:
    write = seconds if time else significant
    ours = (UNKNOWN, UNKNOWN) if pair is None else (write(pair.simulated), signed_percent(pair.error))
    return write(figure.first), write(figure.second), signed_percent(figure.relative), *ours
