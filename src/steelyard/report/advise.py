"""What fleets would have cost and missed: a table on the console, and JSON."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from steelyard.records.jsontext import readable
from steelyard.search.advise import AdviceRow, FleetAdvice
from steelyard.words import dollars, percent, seconds, significant

_WIDTH = 150  # of the table, also on narrower terminals: cells must not be cut
HEADS = ("", "GPU hours", "cost", "missed", "limits", "worst 10 min", "changes", "missed in tuning", "settings")


def advice_json(found: FleetAdvice) -> str:
    """All figures."""
    return readable(found.to_dict())


def advice_cells(row: AdviceRow, found: FleetAdvice) -> list[str]:
    """A row of the table, under `HEADS`."""
    judged = row.judged
    chosen = "chosen in tuning" if row.name == found.chosen_fixed else ""
    return [
        row.name,
        significant(judged.gpu_hours),
        dollars(judged.usd),
        percent(judged.missed),
        "kept" if judged.meets else "over",
        percent(judged.worst),
        str(judged.changes),
        percent(row.tuned.missed),
        row.setting or chosen,
    ]


def introduction(found: FleetAdvice) -> list[str]:
    """What was replayed on what, and how it was judged."""
    paced = "" if found.speed == 1 else f", replayed {found.speed:g} times as fast"
    part = "" if found.seconds * found.speed > 0.999 * found.whole_seconds else f", of {seconds(found.whole_seconds)}"
    replica = f"{found.gpus_per_replica} {found.gpu}"
    return [
        f"{found.trace}: {found.requests:,} requests in {seconds(found.seconds)}{part}{paced}",
        f"{found.scenario}: {replica} per replica at {dollars(found.usd_per_gpu_hour)} per GPU and hour, "
        f"{found.least} to {found.most} replicas, {seconds(found.startup)} to start one",
        f"All settings were chosen on the first {seconds(found.split)}; figures are of the rest.",
    ]


def print_advice(found: FleetAdvice, console: Console) -> None:
    """The table, the cheapest that keeps the limits first; then the sentence."""
    for line in introduction(found):
        console.print(Text(line), soft_wrap=True, highlight=False)
    table = Table(box=None)
    for head in HEADS:
        table.add_column(head, justify="left" if head in ("", "limits", "settings") else "right", no_wrap=True)
    for row in found.rows:
        table.add_row(*map(Text, advice_cells(row, found)))
    width, console.width = console.width, max(console.width, _WIDTH)
    console.print(table)
    console.width = width
    console.print(Text(found.sentence), soft_wrap=True, highlight=False)
