"""Student's t: against printed tables."""

from __future__ import annotations

import pytest

from steelyard.sim.student import quantile, two_sided, welch_freedom


@pytest.mark.parametrize(
    ("confidence", "freedom", "printed"),
    [(0.95, 1, 12.706), (0.95, 4, 2.776), (0.95, 7, 2.365), (0.99, 30, 2.750), (0.999, 4, 8.610), (0.95, 1e6, 1.960)],
)
def test_quantiles_are_those_of_printed_tables(confidence: float, freedom: float, printed: float) -> None:
    assert quantile(confidence, freedom) == pytest.approx(printed, abs=6e-4)
    assert two_sided(-quantile(confidence, freedom), freedom) == pytest.approx(1 - confidence, rel=1e-6)


def test_far_out_and_at_the_middle() -> None:
    assert two_sided(0.0, 5) == 1.0 and 0 < two_sided(60.0, 7) < 1e-8


def test_equal_spreads_have_the_freedom_of_both() -> None:
    assert welch_freedom((2.0, 2.0), (6, 6)) == pytest.approx(10)
    assert welch_freedom((2.0, 1e-12), (6, 6)) == pytest.approx(5)
