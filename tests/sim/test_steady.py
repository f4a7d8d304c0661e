"""The steady window: found where there is one, refused where there is none, and its intervals hold the truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import Scenario, UserError, scenario_from_dict, simulate
from steelyard.sim import Summary, with_intervals
from steelyard.sim.steady import Window, in_system, sampling_interval, truncation
from support.known import known

CHAT = {"prompt": 600, "output": {"kind": "lognormal", "median": 60, "p95": 240}}
ONE_AT_A_TIME: dict[str, Any] = {"engine": {"max_num_seqs": 1}, "fleet": {"gpu": "h100"}}  # served like M/D/1


def scenario(rate: float, requests: int, seed: int = 0, **changes: Any) -> Scenario:
    asked = {"arrivals": {"kind": "poisson", "rate": rate}, "requests": requests, **CHAT}
    fleet = {"gpu": "h100", "replicas": 2}
    written = {"model": "llama-3.1-8b", "fleet": fleet, "workload": asked, "seed": seed, "cost": {"source": "analytic"}}
    return scenario_from_dict({**written, **changes})


def summary(*args: Any, **changes: Any) -> Summary:
    return simulate(scenario(*args, **changes)).summary


# -- the parts --------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 20)), min_size=1, max_size=30),
    st.lists(st.floats(0, 80), min_size=1, max_size=8),
)
def test_time_in_the_system_is_what_each_request_spent_there(
    stays: list[tuple[float, float]], moments: list[float]
) -> None:
    arrival = np.array([at for at, _ in stays])
    ended = np.array([at + stayed for at, stayed in stays])
    expected = [sum(max(0.0, min(t, e) - a) for a, e in zip(arrival, ended, strict=True)) for t in moments]
    assert in_system(arrival, ended, np.array(moments)) == pytest.approx(expected, abs=1e-6)


@given(st.integers(0, 60), st.floats(5, 50), st.integers(0, 2**32 - 1))
def test_what_comes_before_the_level_is_cut_off(ramp: int, height: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(size=200)
    series = noise + np.concatenate([np.linspace(-height, 0, ramp, endpoint=False), np.zeros(200 - ramp)])
    cut = known(truncation(np.asarray(series)))
    assert cut <= ramp + 60, "little more than the ramp"
    assert series[cut:].mean() > -1.0, "and what is left stands on the level"


@given(st.integers(8, 200), st.floats(0.1, 10))
def test_a_series_that_rises_all_the_way_has_no_level(n: int, slope: float) -> None:
    assert truncation(np.linspace(0.0, slope, n)) is None


def test_intervals_of_poisson_streams_hold_their_rate_as_often_as_they_say() -> None:
    dice = np.random.default_rng(5)
    held = 0
    for _ in range(300):
        came = np.sort(dice.uniform(0, 100, dice.poisson(500)))
        left = came + dice.exponential(3.0, len(came))
        low, high = sampling_interval(came, left, None, Window(30.0, 100.0))
        held += low <= 5.0 <= high
    assert 0.86 <= held / 300 <= 0.98


# -- of runs ----------------------------------------------------------------------------------------------------------


def test_a_short_run_has_none_and_a_long_one_reports_the_rate_that_comes() -> None:
    short, long = summary(20.0, 120), summary(20.0, 3000)
    assert short.steady is None and known(short.unsteady).reason.startswith("too short")
    steady = known(long.steady)
    assert steady.throughput.requests_per_s == pytest.approx(20.0, rel=0.06)
    low, high = steady.sampling["requests_per_s"]
    assert low <= 20.0 <= high and high / low < 1.15
    assert steady.requests == pytest.approx(steady.throughput.requests_per_s * steady.seconds)
    assert steady.end_s <= scenario_last_arrival(long) and long.unsteady is None
    assert long.throughput.requests_per_s < steady.throughput.requests_per_s


def scenario_last_arrival(told: Summary) -> float:
    return float(simulate(scenario(20.0, told.requests)).requests["arrival"].max())


def test_intervals_hold_the_rate_over_seeds() -> None:
    found = [known(summary(30.0, 800, seed).steady) for seed in range(20)]
    held = [low <= 30.0 <= high for low, high in (each.sampling["requests_per_s"] for each in found)]
    assert sum(held) >= 15, "90 % of 20, less what chance may take"
    assert np.mean([each.throughput.requests_per_s for each in found]) == pytest.approx(30.0, rel=0.02)


@pytest.mark.parametrize(("share", "overloaded"), [(0.6, False), (0.85, False), (1.2, True), (2.0, True)])
def test_a_queue_that_grows_is_told_from_one_that_does_not(share: float, overloaded: bool) -> None:
    work = {"prompt": 300, "output": 60}
    alone = simulate(scenario(1.0, 1, workload={"arrivals": {"kind": "burst"}, "requests": 1, **work}, **ONE_AT_A_TIME))
    capacity = 1 / known(alone.summary.e2e.mean)
    for seed in range(3):
        asked = {"arrivals": {"kind": "poisson", "rate": share * capacity}, "requests": 1500, **work}
        found = summary(1.0, 1, seed, workload=asked, **ONE_AT_A_TIME)
        why = "" if found.unsteady is None else found.unsteady.reason
        assert why.startswith("overloaded") is overloaded, (seed, why)
        if overloaded:
            told = known(found.unsteady)
            assert known(told.arrive_per_s) == pytest.approx(share * capacity, rel=0.1)
            assert known(told.finish_per_s) == pytest.approx(capacity, rel=0.15)
        elif found.steady is not None:  # a long queue may not settle
            assert found.steady.throughput.requests_per_s == pytest.approx(share * capacity, rel=0.1)
        else:
            assert share > 0.8


def test_users_that_wait_for_their_answers_never_overload_and_drain_when_the_first_is_done() -> None:
    asked = {"arrivals": {"kind": "closed", "users": 40, "think": 0.2}, "requests": 4000, **CHAT}
    result = simulate(scenario(1.0, 1, workload=asked))
    steady = known(result.summary.steady)
    last = {int(i) % 40: float(at) for i, at in zip(result.requests["id"], result.requests["finish"], strict=True)}
    assert steady.end_s == pytest.approx(min(last.values()))
    round_trip = known(steady.e2e.mean) + 0.2
    assert steady.throughput.requests_per_s == pytest.approx(40 / round_trip, rel=0.02), "Little's law"
    crowd = {"arrivals": {"kind": "closed", "users": 60, "ramp": 20}, "requests": 300, **CHAT}
    found = summary(1.0, 1, workload=crowd, engine={"max_num_seqs": 2})
    assert found.unsteady is None or not found.unsteady.reason.startswith("overloaded")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"workload": {"arrivals": {"kind": "burst"}, "requests": 300, **CHAT}}, "all requests come at once"),
        ({"dynamics": [{"at": 5, "crash": {"replica": 0, "restart_after": 2}}]}, "the fleet changes"),
        (
            {"workload": {"arrivals": {"kind": "varying", "profile": [[0, 5], [60, 30]]}, "requests": 600, **CHAT}},
            "the rate of arrivals changes",
        ),
    ],
)
def test_what_has_none_says_why(changes: dict[str, Any], why: str) -> None:
    found = summary(20.0, 600, **changes)
    assert found.steady is None and known(found.unsteady).reason.startswith(why)


def test_a_window_may_be_given() -> None:
    crash = [{"at": 5, "crash": {"replica": 0, "restart_after": 2}}]
    run = simulate(scenario(20.0, 600, dynamics=crash, steady={"start": 10, "end": 20}))
    steady = known(run.summary.steady)
    finish = run.requests["finish"]
    inside = (finish > 10) & (finish <= 20)
    assert (steady.start_s, steady.end_s, steady.requests) == (10, 20, int(inside.sum()))
    assert steady.throughput.requests_per_s == pytest.approx(inside.sum() / 10)
    tokens = run.requests["output"][inside].sum()
    price = run.summary.cost.usd_per_gpu_hour * 2 * 10 / 3600
    assert known(steady.usd_per_million_output_tokens) == pytest.approx(price / tokens * 1e6)
    late = summary(20.0, 600, steady={"start": 1e6})
    assert late.steady is None and "when all was served" in known(late.unsteady).reason
    with pytest.raises(UserError, match=r"steady\.end: not after start"):
        scenario(20.0, 600, steady={"start": 20, "end": 10})


def test_intervals_of_steady_figures_hold_what_the_draw_does() -> None:
    result = with_intervals(simulate(scenario(20.0, 600)), workers=0)
    steady, bounds = known(result.summary.steady), known(result.summary.intervals).bounds
    low, high = bounds["steady.requests_per_s"]
    sampled = steady.sampling["requests_per_s"]
    assert low <= sampled[0] * 1.02 and high >= sampled[1] * 0.98
    assert low <= 20.0 <= high
    assert math.isfinite(bounds["steady.usd_per_million_output_tokens"][1])


def test_a_run_that_was_cut_counts_what_had_ended_by_then() -> None:
    whole, cut = simulate(scenario(20.0, 3000)), simulate(scenario(20.0, 3000), until=100.0)
    assert (cut.requests["status"] == "unfinished").any()
    steady = known(cut.summary.steady)
    assert steady.end_s <= 100.5
    assert steady.throughput.requests_per_s == pytest.approx(20.0, rel=0.1)
    finish = whole.requests["finish"]
    inside = (finish > steady.start_s) & (finish <= steady.end_s)
    assert steady.requests == pytest.approx(inside.sum(), abs=3)
