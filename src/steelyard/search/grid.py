"""``--over KEY=VALUES``: the grid of a sweep, all combinations of the values of its axes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp, isfinite, log, prod
from typing import Any

from steelyard.errors import UserError
from steelyard.quoting import shortened
from steelyard.scenario.overrides import Override, parse_override

MOST_POINTS = 100_000  # a day of simulations of a second each
_NUMBER = r"[+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?"
_RANGE = re.compile(rf"({_NUMBER}):({_NUMBER}):([0-9]+)(:log)?")
_CLOSING = {"[": "]", "{": "}", '"': '"', "'": "'"}
_FORM = "KEY.PATH=VALUE,VALUE,... or KEY.PATH=FROM:TO:COUNT, such as fleet.tp=1,2,4"


@dataclass(frozen=True)
class GridAxis:
    """A key and the values that it takes, as overrides of a scenario."""

    key: str
    labels: tuple[str, ...]  # values as they are written
    overrides: tuple[Override, ...]
    ratios: bool = False  # whether values grow by a factor, not by a sum

    @property
    def values(self) -> tuple[Any, ...]:
        """The values."""
        return tuple(each.value for each in self.overrides)


def parse_axes(texts: Sequence[str]) -> tuple[GridAxis, ...]:
    """All axes of a sweep. A grid that is too large is refused."""
    axes = tuple(parse_axis(text) for text in texts)
    keys = [axis.key for axis in axes]
    for i, key in enumerate(keys):
        if key in keys[:i]:
            raise UserError(f"--over {shortened(key)}: given twice; give all values at once, with commas between")
    if not axes:
        raise UserError(f"--over: missing; give at least one, as {_FORM}")
    points = prod(len(axis.labels) for axis in axes)
    if points > MOST_POINTS:
        sizes = " x ".join(str(len(axis.labels)) for axis in axes)
        raise UserError(f"--over: {sizes} = {points:,} points; at most {MOST_POINTS:,} are run: give fewer values")
    return axes


def parse_axis(text: str) -> GridAxis:
    """``fleet.tp=1,2,4``, ``workload.arrivals.rate=5:50:10``, or ``engine.max_num_seqs=16:1024:7:log``.

    Commas within brackets or quotes belong to a value.
    """
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not key or not values:
        raise UserError(f"--over {shortened(text)}: must read {_FORM}")
    steps = _RANGE.fullmatch(values)
    labels = _steps(text, *steps.groups()) if steps else _separated(text, values)
    overrides = tuple(parse_override(f"{key}={label}", "--over") for label in labels)
    for i, each in enumerate(overrides):
        if any(each.value == other.value for other in overrides[:i]):
            raise UserError(f"--over {shortened(text)}: {labels[i]} is given twice")
    return GridAxis(key, tuple(labels), overrides, ratios=steps is not None and steps[4] is not None)


def points_of(axes: Sequence[GridAxis]) -> Iterator[tuple[Override, ...]]:
    """All combinations, the values of the last axis changing fastest."""
    return product(*(axis.overrides for axis in axes))


def _separated(text: str, values: str) -> list[str]:
    found, open_ = [""], list[str]()
    for letter in values:
        if open_ and letter == open_[-1]:
            open_.pop()
        elif letter in _CLOSING and not (open_ and open_[-1] in "\"'"):
            open_.append(_CLOSING[letter])
        elif letter == "," and not open_:
            found.append("")
            continue
        found[-1] += letter
    labels = [each.strip() for each in found]
    if not all(labels):
        raise UserError(f"--over {shortened(text)}: a value is missing between two commas")
    if len(labels) > MOST_POINTS:
        raise UserError(f"--over {shortened(text)}: {len(labels):,} values; at most {MOST_POINTS:,} points are run")
    return labels


def _steps(text: str, first: str, last: str, number: str, ratios: str | None) -> list[str]:
    """Values from one number to another, in equal steps or at equal ratios. Whole numbers stay whole."""
    where = f"--over {shortened(text)}"
    try:
        low, high, count = float(first), float(last), int(number[:20])
    except ValueError:
        raise UserError(f"{where}: must read {_FORM}") from None
    if not 2 <= count <= MOST_POINTS or not isfinite(low) or not isfinite(high) or low == high:
        raise UserError(f"{where}: FROM:TO:COUNT needs two different numbers and a count of 2 to {MOST_POINTS:,}")
    if ratios and (low <= 0 or high <= 0):
        raise UserError(f"{where}: equal ratios (:log) need numbers above 0")
    shares = [i / (count - 1) for i in range(count)]
    if ratios:
        values = [exp(log(low) + (log(high) - log(low)) * share) for share in shares]
    else:
        values = [low + (high - low) * share for share in shares]
    values[-1] = high
    whole = first.lstrip("+-").isdigit() and last.lstrip("+-").isdigit()
    return [_written(value, whole) for value in values]


def _written(value: float, whole: bool) -> str:
    """A value to nine digits, which hides what rounding adds."""
    near = round(value)
    if whole and abs(value - near) <= 1e-9 * abs(value):
        return str(near)
    text = f"{value:.9g}"
    return text if "." in text or "e" not in text else text.replace("e", ".0e")
