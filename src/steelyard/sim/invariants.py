"""What must hold in every result, and the collection of what does not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import isclose, isfinite
from typing import Any

_ROUNDING = 1e-9  # relative error of sums and quotients of floats


class BrokenResult(Exception):
    """A result that cannot be true. The message has a line for each violated invariant."""

    def __init__(self, violations: Sequence[str]) -> None:
        super().__init__("\n".join(violations))
        self.violations = tuple(violations)


class Invariants:
    """Collects violations, so that all of them are told at once."""

    def __init__(self) -> None:
        self.violations: list[str] = []

    def expect(self, holds: Any, violation: str) -> None:
        """Something that must be true, and the words for it being false."""
        if not holds:
            self.violations.append(violation)

    def same(self, name: str, value: float, expected: float, of: str) -> None:
        """Two ways to the same figure, up to rounding."""
        close = isclose(value, expected, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
        self.expect(close, f"{name} is {value!r}, but {of} is {expected!r}")

    def shares(self, shares: Mapping[str, float | None]) -> None:
        """Parts of a whole, by name; None for those that do not apply."""
        for name, value in shares.items():
            if value is not None:
                self.expect(-_ROUNDING <= value <= 1 + _ROUNDING, f"{name} is {value!r}; a share is from 0 to 1")

    def rising(self, what: str, named: Mapping[str, float | None]) -> None:
        """Values that may not fall from one to the next, by name; None for those that do not apply."""
        given = [(name, value) for name, value in named.items() if value is not None]
        for (name, value), (following, limit) in pairwise(given):
            self.expect(
                value <= limit + _ROUNDING * abs(limit),
                f"{what}: {name} is {value!r}, above {following}, which is {limit!r}",
            )

    def spread(self, name: str, figures: Mapping[str, float | None]) -> None:
        """Percentiles in order, the mean between 0 and the maximum."""
        self.rising(name, {"zero": 0.0} | {key: value for key, value in figures.items() if key != "mean"})
        self.rising(name, {"zero": 0.0, "mean": figures["mean"], "max": figures["max"]})

    def finite(self, name: str, data: Any) -> None:
        """No figure at any depth is NaN or infinite."""
        for place, value in _numbers(name, data):
            self.expect(isfinite(value), f"{place} is {value!r}")

    def done(self) -> None:
        """Raise `BrokenResult` if anything is violated."""
        if self.violations:
            raise BrokenResult(self.violations)


def _numbers(place: str, data: Any) -> Iterator[tuple[str, float]]:
    """Every float of nested data, and where it is."""
    if isinstance(data, float):
        yield place, data
    elif isinstance(data, Mapping):
        for key, value in data.items():
            yield from _numbers(f"{place}.{key}", value)
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            yield from _numbers(f"{place}[{index}]", value)
