"""What every chart can do: show itself in a notebook, and be saved."""

from __future__ import annotations

import csv
from abc import ABC, abstractmethod
from collections.abc import Sequence
from io import StringIO
from math import isnan
from pathlib import Path

from steelyard.errors import UserError
from steelyard.files.writing import write_text

NOTHING = "Nothing to show: this run has no such values."
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # with which a spreadsheet begins a formula


class Figure(ABC):
    """A chart, or several."""

    @abstractmethod
    def svg(self) -> str:
        """The whole as SVG text, which needs nothing else."""

    @abstractmethod
    def table(self) -> Sequence[Sequence[str | float | None]]:
        """What is drawn, in rows under a head."""

    def csv(self) -> str:
        """What is drawn, for a spreadsheet. Text that it would take for a formula begins with an apostrophe."""
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows([_cell(each) for each in row] for row in self.table())
        return text.getvalue()

    def save(self, path: str | Path) -> None:
        """Write an SVG or a CSV file, by the ending of its name."""
        path = Path(path)
        made = {".svg": self.svg, ".csv": self.csv}.get(path.suffix.lower())
        if made is None:
            raise UserError(f"{path}: a chart is saved as .svg or as .csv")
        write_text(path, made())

    def _repr_svg_(self) -> str:
        return self.svg()


def _cell(value: str | float | None) -> str | float:
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA) else value
    return "" if value is None or isnan(value) else value
