"""Values of an axis as text, and the round values that an axis is marked at."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, log10
from typing import Literal

from steelyard.words import UNKNOWN, count, dollars, percent, seconds, significant

Unit = Literal["s", "clock", "share", "change", "number", "whole", "usd"]
"""Seconds, seconds of a run, a share of one, a relative difference, any number, a count, US dollars."""

_CLOCK = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_LETTERS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def said(unit: Unit, value: float | None) -> str:
    """A value in words."""
    if value is None:
        return UNKNOWN
    if unit in ("s", "clock"):
        return seconds(value)
    if unit == "share":
        return percent(value)
    if unit == "change":
        return f"{value * 100:+.1f} %"
    if unit == "usd":
        return dollars(value)
    return count(value) if unit == "whole" or abs(value) >= 1000 else significant(value)


def marked(unit: Unit, value: float, span: float) -> str:
    """A value at an axis that is so long."""
    if unit == "share":
        return f"{_digits(value * 100)} %"
    if unit == "change":
        return f"{value * 100:+.3g} %" if value else "0"
    if unit == "usd":
        return f"${brief(value)}"
    if unit not in ("s", "clock"):
        return brief(value)
    if value == 0:
        return "0"
    scale, name = _clock_unit(span) if unit == "clock" else _time_unit(value)
    return f"{_digits(value / scale)} {name}"


def brief(value: float) -> str:
    """`1.5k`, `20M`."""
    scale, letter = next(((s, letter) for s, letter in _LETTERS if abs(value) >= s), (1.0, ""))
    return _digits(value / scale) + letter


def _digits(value: float) -> str:
    rounded = float(f"{value:.3g}")
    return f"{rounded:.0f}" if rounded == int(rounded) else f"{rounded:f}".rstrip("0")


def _time_unit(value: float) -> tuple[float, str]:
    size = float(f"{abs(value):.3g}")
    units = ((3600.0, 7200.0, "h"), (60.0, 120.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"))
    return next(((scale, name) for scale, least, name in units if size >= least), (1e-6, "µs"))


def _clock_unit(span: float) -> tuple[float, str]:
    """Ticks of one axis share a unit."""
    if span >= 18000:
        return 3600.0, "h"
    return (60.0, "min") if span >= 600 else _time_unit(min(span, 100.0))


def ticks(low: float, high: float, most: int, unit: Unit, log: bool = False) -> list[float]:
    """Round values between two ends, about so many at most."""
    if log:
        return _log_ticks(low, high, most, unit)
    rough = (high - low) / most
    if unit in ("s", "clock") and 0.5 <= rough <= _CLOCK[-1]:
        return _multiples(low, high, next(step for step in _CLOCK if step >= rough))
    step = _nice(rough)
    return _multiples(low, high, max(1.0, step) if unit == "whole" else step)


def _nice(least: float) -> float:
    power = 10.0 ** floor(log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * 0.999999)


def _multiples(low: float, high: float, step: float) -> list[float]:
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return [k * step for k in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int, unit: Unit) -> list[float]:
    decades = [10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1)]

    def within(steps: Sequence[int]) -> list[float]:
        found = [step * decade for decade in decades for step in steps]
        return [each for each in found if low * 0.999 <= each <= high * 1.001]

    fine, middling, whole = within((1, 2, 5)), within((1, 3)), within((1,))
    if len(fine) < 3:
        return [each for each in ticks(low, high, most, unit) if each > 0]
    every = max(1, -(-len(whole) // most))
    return next((found for found in (fine, middling) if len(found) <= most), whole[::every])
