"""A calibration on the terminal: the fitted terms, and their error on captures that were held out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steelyard.report.validation import signed_percent
from steelyard.validate.crossed import Crossed, headline


def print_calibration(crossed: Crossed, console: Console) -> None:
    """Two tables: terms with their standard errors, and the error on each held-out capture."""
    table = Table("term", "seconds", "give or take", "seen", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, value in asdict(crossed.calibration.terms).items():
        fit = crossed.calibration.fits.get(name)
        basis = ("default", "") if fit is None else (f"{fit.error * 1e3:.4f} ms", f"{fit.observations} times")
        table.add_row(name, f"{value * 1e3:.4f} ms", *basis)
    console.print(table)
    if not crossed.held_out:
        console.print("\none run only: nothing is left to try the calibration on")
        return
    metrics = ("ttft", "tpot", "e2e", "throughput")
    errors = Table("run left out", *metrics, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    errors.title, errors.title_justify, errors.title_style = Text("mean, simulated over measured"), "left", "bold blue"
    for where, found in crossed.held_out.items():
        name = "/".join(Path(where).parts[-2:])
        if isinstance(found, str):
            errors.add_row(name, Text("the others alone do not tell the terms", style="yellow"))
        else:
            errors.add_row(name, *(signed_percent(pair.error) for pair in headline(found).values()))
    console.print()
    console.print(errors)
