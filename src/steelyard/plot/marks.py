"""What charts are made of: axes, series of marks, bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from steelyard.plot.units import Unit
from steelyard.records.columns import Floats
from steelyard.records.jsontext import short

Kind = Literal["line", "steps", "band", "dots", "bars", "rules", "spans"]
Hue = Literal["1", "2", "3", "4", "5", "6", "good", "bad", "soft"]
HUES: tuple[Hue, ...] = ("1", "2", "3", "4", "5", "6")


@dataclass(frozen=True)
class Axis:
    """What an axis measures and where it ends; an end of None is found from the marks. ``names`` are those of the
    places 0, 1, 2, … of an axis without numbers."""

    name: str
    unit: Unit
    low: float | None = None
    high: float | None = None
    log: bool = False
    names: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Marks:
    """One series. ``low`` is where bands, bars and filled areas begin, ``ends`` where bars and spans end.

    ``said`` stands beside the name as long as nothing is pointed at; ``labels`` are names of single dots.
    """

    kind: Kind
    x: Floats
    y: Floats
    name: str = ""
    hue: Hue = "1"
    low: Floats | None = None
    ends: Floats | None = None
    fill: bool = False
    said: str = ""
    labels: Sequence[str] = ()
    hollow: Sequence[bool] = ()

    def data(self) -> dict[str, Any]:
        """For JSON; what holds its default is left out."""
        found: dict[str, Any] = {"kind": self.kind, "x": short(self.x, 6), "y": short(self.y)}
        found |= {"hue": self.hue, "name": self.name, "said": self.said, "fill": self.fill}
        found |= {"low": None if self.low is None else short(self.low)}
        found |= {"ends": None if self.ends is None else short(self.ends, 6)}
        found |= {"labels": list(self.labels), "hollow": [int(each) for each in self.hollow]}
        return {name: value for name, value in found.items() if value}


@dataclass(frozen=True)
class Threshold:
    """A line across the chart at a value of one axis."""

    name: str
    at: float
    axis: Literal["x", "y"] = "x"


@dataclass(frozen=True)
class Bar:
    """A horizontal bar from ``start`` to ``value``; ``interval`` is drawn across its end."""

    label: str
    value: float
    text: str
    hue: Hue = "1"
    start: float = 0.0
    interval: tuple[float, float] | None = None

    def data(self) -> dict[str, Any]:
        """For JSON; what holds its default is left out."""
        found: dict[str, Any] = {"label": self.label, "value": self.value, "text": self.text, "hue": self.hue}
        found |= {"start": self.start} if self.start else {}
        return found | ({"interval": list(self.interval)} if self.interval else {})
