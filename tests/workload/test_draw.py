"""Arrival times and lengths follow the laws they are named after."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from steelyard.errors import UserError
from steelyard.records import Floats, Ints
from steelyard.scenario import (
    ArrivalsSpec,
    ClosedArrivals,
    SecondsSpec,
    TokensSpec,
    TraceArrivals,
    VaryingArrivals,
)
from steelyard.workload.arrivals import arrival_times
from steelyard.workload.draw import draw_seconds, draw_tokens

N = 100_000


def arrive(spec: dict[str, Any], n: int | None = N, duration: float | None = None, share: float = 1.0) -> Floats:
    parsed = TypeAdapter[Any](ArrivalsSpec).validate_python(spec)
    assert not isinstance(parsed, ClosedArrivals | TraceArrivals)
    return arrival_times(parsed, share, n, duration, np.random.default_rng(5))


def lengths(spec: Any, base_dir: Path = Path()) -> Ints:
    return draw_tokens(TypeAdapter[Any](TokensSpec).validate_python(spec), N, np.random.default_rng(5), base_dir)


def pauses(spec: Any) -> Floats:
    return draw_seconds(TypeAdapter[Any](SecondsSpec).validate_python(spec), N, np.random.default_rng(5))


@pytest.mark.parametrize(
    ("spec", "cv"),
    [
        ({"kind": "poisson", "rate": 40}, 1.0),
        ({"kind": "gamma", "rate": 40, "cv": 2.5}, 2.5),
        ({"kind": "gamma", "rate": 40, "cv": 0.3}, 0.3),
    ],
)
def test_gaps_have_their_mean_and_burstiness(spec: dict[str, Any], cv: float) -> None:
    gaps = np.diff(arrive(spec))
    assert gaps.mean() == pytest.approx(1 / 40, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_constant_and_burst_times_are_exact() -> None:
    assert arrive({"kind": "constant", "rate": 4}, 5).tolist() == [0, 0.25, 0.5, 0.75, 1.0]
    assert arrive({"kind": "constant", "rate": 4}, None, 1.1).tolist() == [0, 0.25, 0.5, 0.75, 1.0]
    assert arrive({"kind": "constant", "rate": 4}, 2, 1.1, share=0.5).tolist() == [0, 0.5]
    assert arrive({"kind": "burst", "at": 3}, 4).tolist() == [3, 3, 3, 3]


@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "poisson", "rate": 40},
        {"kind": "gamma", "rate": 40, "cv": 2},
        {"kind": "varying", "profile": {"mean": 40, "amplitude": 20, "period": 30}},
    ],
)
def test_a_duration_cuts_the_same_stream_of_arrivals(spec: dict[str, Any]) -> None:
    everyone = arrive(spec)
    early = arrive(spec, None, 500.0)
    assert np.array_equal(early, everyone[: len(early)])
    assert early[-1] <= 500.0 < everyone[len(early)]
    assert np.array_equal(arrive(spec, 100, 500.0), everyone[:100])


def test_rate_and_share_only_stretch_time() -> None:
    slow = arrive({"kind": "poisson", "rate": 10})
    assert np.allclose(slow, 4 * arrive({"kind": "poisson", "rate": 40}), rtol=1e-12)
    assert np.allclose(slow, arrive({"kind": "poisson", "rate": 40}, share=0.25), rtol=1e-12)


def rate_at(spec: VaryingArrivals, t: Floats) -> Floats:
    profile = spec.profile
    if isinstance(profile, tuple):
        return np.interp(t, [x for x, _ in profile], [y for _, y in profile])
    return profile.mean + profile.amplitude * np.sin(2 * np.pi * t / profile.period)


profiles = st.one_of(
    st.builds(
        lambda mean, part, period: {"mean": mean, "amplitude": mean * part, "period": period},
        st.floats(1, 50),
        st.floats(0, 1),
        st.floats(1, 30),
    ),
    st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 50)), min_size=1, max_size=6).map(
        lambda steps: [[sum(gap for gap, _ in steps[: i + 1]), rate] for i, (_, rate) in enumerate(steps)] + [[40, 9]]
    ),
)


@given(profiles)
@settings(max_examples=60)
def test_the_varying_rate_integrates_to_the_arrivals(profile: Any) -> None:
    spec = VaryingArrivals.model_validate({"kind": "varying", "profile": profile})
    n = 200
    times = arrival_times(spec, 1.0, n, None, np.random.default_rng(3))
    expected = np.cumsum(np.random.default_rng(3).standard_exponential(n))
    # the rate's integral up to each arrival, by trapezoids on a grid that holds every corner of the profile
    corners = [x for x, _ in spec.profile] if isinstance(spec.profile, tuple) else []
    grid = np.unique(np.concatenate([np.linspace(0, times[-1], 400_001), times, corners]))
    rates = rate_at(spec, grid)
    integral = np.concatenate([[0.0], np.cumsum(np.diff(grid) * (rates[1:] + rates[:-1]) / 2)])
    found = integral[np.searchsorted(grid, times)]
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-6)


def test_the_wave_is_busy_at_its_peak() -> None:
    times = arrive({"kind": "varying", "profile": {"mean": 20, "amplitude": 20, "period": 100}})
    phase = np.histogram(times[times < 4000] % 100, bins=4, range=(0, 100))[0] / 40
    swing = 20 * 25 * (1 + np.array([1, 1, -1, -1]) * 2 / np.pi)  # the integral of 1 + sin over each quarter
    assert np.abs(phase - swing).max() < 5 * np.sqrt(swing.max() / 40)


def test_nobody_comes_while_the_rate_is_zero() -> None:
    times = arrive({"kind": "varying", "profile": [[0, 0], [10, 20], [20, 0], [50, 0], [60, 20]]}, 2000)
    assert not ((times > 20) & (times < 50)).any()
    assert (times > 50).any()
    ended = arrive({"kind": "varying", "profile": [[0, 20], [10, 0]]}, 2000)
    assert 50 < len(ended) < 150 and ended[-1] < 10


@pytest.mark.parametrize(
    ("spec", "low", "high", "mean"),
    [
        (77, 77, 77, 77.0),
        ({"kind": "uniform", "min": 3, "max": 9}, 3, 9, 6.0),
        ({"kind": "zipf", "min": 2, "max": 4, "exponent": 1}, 2, 4, 3 / (1 / 2 + 1 / 3 + 1 / 4)),
        ({"kind": "empirical", "values": [1, 1, 7]}, 1, 7, 3.0),
        ({"kind": "empirical", "histogram": [[1, 3, 3], [5, 5, 0], [11, 13, 1]]}, 1, 13, 4.5),
    ],
)
def test_lengths_have_their_range_and_mean(spec: Any, low: int, high: int, mean: float) -> None:
    drawn = lengths(spec)
    assert (drawn.min(), drawn.max()) == (low, high)
    assert drawn.mean() == pytest.approx(mean, rel=0.02)


def test_a_bin_without_weight_is_never_drawn() -> None:
    drawn = lengths({"kind": "empirical", "histogram": [[1, 3, 1], [5, 5, 0], [7, 7, 1], [9, 9, 0]]})
    assert sorted(set(drawn.tolist())) == [1, 2, 3, 7]


def test_lognormal_lengths_meet_median_p95_and_limits() -> None:
    drawn = lengths({"kind": "lognormal", "median": 500, "p95": 2000})
    assert np.percentile(drawn, 50) == pytest.approx(500, rel=0.02)
    assert np.percentile(drawn, 95) == pytest.approx(2000, rel=0.03)
    limited = lengths({"kind": "lognormal", "median": 500, "p95": 2000, "min": 100, "max": 1000})
    assert (limited.min(), limited.max()) == (100, 1000)
    assert lengths({"kind": "lognormal", "median": 0.01, "p95": 1e9}).min() == 1
    assert lengths({"kind": "lognormal", "mean": 300, "sigma": 0.5}).mean() == pytest.approx(300, rel=0.02)


def test_pauses_have_their_mean() -> None:
    assert pauses(2.5).tolist()[:3] == [2.5, 2.5, 2.5]
    assert pauses({"kind": "uniform", "min": 1, "max": 4}).mean() == pytest.approx(2.5, rel=0.02)
    assert pauses({"kind": "exponential", "mean": 7}).mean() == pytest.approx(7, rel=0.02)
    assert np.median(pauses({"kind": "lognormal", "median": 3, "p95": 9})) == pytest.approx(3, rel=0.02)


def test_lengths_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("# seen on Monday\n10\n\n20\n")
    assert set(lengths({"kind": "empirical", "file": "lengths.txt"}, tmp_path).tolist()) == {10, 20}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10\nten\n", r"lengths\.txt:2: must be a whole number of tokens, 1 to 1,000,000,000 \(found 'ten'\)"),
        ("10\n\n0\n", r"lengths\.txt:3: must be a whole number of tokens, 1 to 1,000,000,000 \(found '0'\)"),
        ("# none\n", r"lengths\.txt: holds no lengths"),
    ],
)
def test_a_bad_file_of_lengths(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "lengths.txt").write_text(text)
    with pytest.raises(UserError, match=message):
        lengths({"kind": "empirical", "file": "lengths.txt"}, tmp_path)


def test_a_missing_file_of_lengths(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"gone\.txt: no such file"):
        lengths({"kind": "empirical", "file": "gone.txt"}, tmp_path)
