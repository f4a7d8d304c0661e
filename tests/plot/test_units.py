"""Values and round values of axes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.plot.units import Unit, brief, marked, said, ticks

UNITS: tuple[Unit, ...] = ("s", "clock", "share", "change", "number", "whole", "usd")


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("s", 0.0312, "31.2 ms"),
        ("clock", 90.0, "90.0 s"),
        ("share", 0.5, "50.0 %"),
        ("change", -0.031, "-3.1 %"),
        ("number", 1234.5, "1,234"),
        ("number", 3.14159, "3.14"),
        ("whole", 12345.0, "12,345"),
        ("usd", 0.0887, "$0.0887"),
        ("number", None, "–"),
    ],
)
def test_values_in_words(unit: Unit, value: float | None, text: str) -> None:
    assert said(unit, value) == text


@pytest.mark.parametrize(
    ("unit", "value", "span", "text"),
    [
        ("clock", 90.0, 600.0, "1.5 min"),
        ("clock", 90.0, 100.0, "90 s"),
        ("s", 0.005, 1.0, "5 ms"),
        ("s", 0.0, 1.0, "0"),
        ("share", 0.25, 1.0, "25 %"),
        ("change", 0.5, 2.0, "+50 %"),
        ("usd", 1500.0, 1.0, "$1.5k"),
        ("number", 2e7, 1.0, "20M"),
    ],
)
def test_values_at_an_axis(unit: Unit, value: float, span: float, text: str) -> None:
    assert marked(unit, value, span) == text


def test_brief_numbers_are_not_in_exponents() -> None:
    assert [brief(value) for value in (0.00002, 0.5, 999.0, 1000.0, 2.5e9)] == ["0.00002", "0.5", "999", "1k", "2.5G"]


@given(st.sampled_from(UNITS), st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 12), st.booleans())
def test_ticks_are_few_rising_and_inside(unit: Unit, low: float, wide: float, most: int, log: bool) -> None:
    low = abs(low) + 1e-3 if log else low
    high = low + wide * (abs(low) if log else 1.0)
    if not high - low > 1e-9 * abs(low):
        return
    found = ticks(low, high, most, unit, log)
    margin = 1e-3 * (high - low) + 2e-3 * abs(high)
    assert len(found) <= max(3 * most, 4)
    assert all(low - margin <= each <= high + margin for each in found)
    assert all(b > a for a, b in pairwise(found))
    assert all(marked(unit, each, high - low) for each in found)
