"""The silicon sample's errors as tables of a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steelyard.validate.silicon import METRICS, Errors, PointReplay, Regret, SiliconValidation, Who
from steelyard.words import UNKNOWN

_MAIN: tuple[Who, ...] = ("ours", "theirs")
NAMES: dict[Who, str] = {"ours": "Steelyard", "fitted": "Steelyard, fitted hosts", "theirs": "AIConfigurator"}
_SHORT = {"ttft": "TTFT", "tpot": "TPOT"}


def print_silicon(validation: SiliconValidation, console: Console) -> None:
    """Errors by GPU, engine and model, what was left out, and the price of choosing by the predictions."""
    if not validation.replays:
        console.print("no point of the sample can be replayed")
    else:
        console.print(_errors(validation))
        console.print(f"\nmedian / mean absolute error and median signed error; costs: {validation.source}")
        console.print(validation.rival)
        console.print(_fitted(validation))
        console.print(_regrets(validation))
    console.print(_left_out(validation))


def _errors(validation: SiliconValidation) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for heading in ("gpu", "engine", "model"):
        table.add_column(heading, overflow="fold")
    table.add_column("rows", justify="right")
    for who in _MAIN:
        for metric in METRICS:
            table.add_column(f"{NAMES[who]}\n{_SHORT[metric]}", justify="right", no_wrap=True)
    for (gpu, engine, model), replays in validation.by_model().items():
        table.add_row(gpu, engine, model.rsplit("/", 1)[-1], *_cells(replays))
    table.add_section()
    for (gpu, engine), replays in validation.by_gpu().items():
        table.add_row(gpu, engine, "all", *_cells(replays))
    table.add_row("all", "", "", *_cells(validation.replays), style="bold")
    both = validation.answered_by_both
    if both and len(both) < len(validation.replays):
        table.add_row("all", "", "answered by both", *_cells(both), style="bold")
    return table


def _fitted(validation: SiliconValidation) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.title, table.title_justify = "With hosts fitted on the rows of other models", "left"
    for heading in ("gpu", "engine", "rows", *(_SHORT[metric] for metric in METRICS)):
        table.add_column(heading, justify="left" if heading in ("gpu", "engine") else "right")
    groups = [(*key, replays) for key, replays in validation.by_gpu().items()]
    for gpu, engine, replays in (*groups, ("all", "", validation.replays)):
        count, *cells = _cells([each for each in replays if each.fitted is not None], ("fitted",))
        table.add_row(gpu, engine, count, *cells)
    return table


def _cells(replays: Sequence[PointReplay], sides: Sequence[Who] = _MAIN) -> list[str]:
    cells = [str(len(replays))]
    for who in sides:
        errors = Errors.of(replays, who)
        cells += [UNKNOWN if errors is None else _figures(errors, metric) for metric in METRICS]
    return cells


def _figures(errors: Errors, metric: str) -> str:
    return f"{errors.median[metric]:.1%} / {errors.mean[metric]:.1%} {errors.bias[metric]:+.1%}"


def _regrets(validation: SiliconValidation) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    table.title, table.title_justify = "Throughput per GPU given away by choosing a configuration", "left"
    for heading in ("by", "groups", "mean", "worst", "under median TPOT", "limit kept"):
        table.add_column(heading, justify="left" if heading == "by" else "right")
    for who, found in validation.regrets().items():
        if found is not None:
            table.add_row(NAMES[who], *_regret_cells(found))
    return table


def _regret_cells(regret: Regret) -> tuple[str, ...]:
    shares = (regret.free_mean, regret.free_worst, regret.limited_mean, regret.kept)
    return str(regret.groups), *(f"{share:.1%}" for share in shares)


def _left_out(validation: SiliconValidation) -> Text:
    reasons = "\n".join(f"{count:6d}  {reason}" for reason, count in validation.skipped.items())
    return Text(f"\nrows left out\n{reasons}" if reasons else "")
