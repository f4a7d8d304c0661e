"""Numbers as text: units and digits, for the console and the page."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

UNKNOWN = "–"

_TIME_UNITS = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def as_number(value: Any) -> float | None:
    """The value as a finite float; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def significant(value: float | None, digits: int = 3) -> str:
    """A number with ``digits`` significant digits, thousands separated, never in exponent form."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    value = float(f"{value:.{digits}g}") if abs(value) < 10**digits else value
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def count(value: float | None) -> str:
    """A whole number, thousands separated."""
    return UNKNOWN if value is None or not math.isfinite(value) else f"{round(value):,}"


def seconds(value: float | None) -> str:
    """A duration in a suitable unit."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0 s"
    size = abs(float(f"{value:.3g}"))
    if size >= 7200:
        return f"{significant(value / 3600)} h"
    if size >= 120:
        return f"{significant(value / 60)} min"
    scale, unit = next((u for u in reversed(_TIME_UNITS) if size >= u[0]), _TIME_UNITS[0])
    return f"{significant(value / scale)} {unit}"


def percent(value: float | None) -> str:
    """A share in per cent. Small shares are not rounded to 0, nor large ones to 100."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if 0 < value < 0.001:
        return "<0.1 %"
    if 0.999 < value < 1:
        return ">99.9 %"
    return f"{value * 100:.1f} %" if 0 < value < 1 else f"{value * 100:.0f} %"


def dollars(value: float | None) -> str:
    """US dollars, with more digits for small sums."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"${value:,.2f}" if value >= 1 or value == 0 else f"${significant(value)}"


def byte_size(value: float | None) -> str:
    """Bytes in binary units."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    size, power = float(value), 0
    while abs(size) >= 1024 and power < len(_BYTE_UNITS) - 1:
        size, power = size / 1024, power + 1
    return f"{significant(size)} {_BYTE_UNITS[power]}" if power else f"{size:,.0f} B"


def plural(value: float, noun: str) -> str:
    """`1 replica`, `4 replicas`."""
    return f"{count(value)} {noun}" if value == 1 else f"{count(value)} {noun}s"


@dataclass(frozen=True)
class Share:
    """A share of one: text on the terminal, text and a bar on the page."""

    value: float | None

    def __str__(self) -> str:
        return percent(self.value)
