"""Percentiles without numpy's checks are numpy's, and those of gaps are those of all gaps in a row."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steelyard.sim import gaps
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.spread import percentiles

SECONDS = st.floats(1e-9, 1e6)


@given(st.lists(SECONDS, min_size=1, max_size=50), st.lists(st.floats(0.0, 100.0), min_size=1, max_size=6))
def test_percentiles_are_numpys_to_the_last_bit(values: list[float], percents: list[float]) -> None:
    assert percentiles(np.array(values), percents) == np.percentile(values, percents).tolist()


@given(
    st.lists(st.lists(st.tuples(SECONDS, st.integers(1, 9)), min_size=1, max_size=40), min_size=1, max_size=3),
    st.sampled_from([1.0, 12.5, 50.0, 90.0, 99.0, 100.0]),
)
def test_percentiles_of_gaps_are_those_of_all_gaps_in_a_row(
    engines: list[list[tuple[float, int]]], percent: float
) -> None:
    made = TokenGaps(
        tuple((np.array([s for s, _ in each]), np.array([count for _, count in each])) for each in engines)
    )
    row = sorted(seconds for each in engines for seconds, count in each for _ in range(count))
    target = percent / 100 * len(row)
    expected = next(seconds for place, seconds in enumerate(row, 1) if place >= target)
    assert made.percentiles([percent]) == [expected]


@given(
    st.lists(st.lists(st.tuples(SECONDS, st.integers(1, 9)), min_size=1, max_size=40), min_size=1, max_size=3),
    st.sampled_from([1, 7, 1 << 21]),
)
def test_many_counts_of_gaps_at_once_are_those_of_all_gaps_sorted(
    engines: list[list[tuple[float, int]]], at_once: int
) -> None:
    made = TokenGaps(
        tuple((np.array([s for s, _ in each]), np.array([count for _, count in each])) for each in engines)
    )
    seconds, counts = made.rising()
    wanted = np.linspace(0, 1, 23) * made.total
    with patch.object(gaps, "_AT_ONCE", at_once):
        assert made.at(wanted) == seconds[np.searchsorted(np.cumsum(counts), wanted)].tolist()
