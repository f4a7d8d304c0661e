"""The largest rate of a real engine on an H200, and what the package predicts for it."""

from __future__ import annotations

from math import inf, isnan

import numpy as np
import pytest

from steelyard import load_scenario
from steelyard.scenario.slo import SloSpec
from support.paths import DATA
from tools.measured_capacity import (
    MeasuredRun,
    calibrated,
    crossing,
    largest,
    levels_of,
    measured,
    predictor,
    read_runs,
    spread,
)

FOLDER = DATA / "capacity-h200"
SCENARIO = FOLDER / "scenario.yaml"


@pytest.fixture(scope="module")
def slo() -> SloSpec:
    found = load_scenario(SCENARIO).slo
    assert found is not None
    return found


@pytest.fixture(scope="module")
def runs() -> list[MeasuredRun]:
    return read_runs(FOLDER)


def test_a_calibrated_prediction_is_within_5_percent_of_the_measured_rate(
    runs: list[MeasuredRun], slo: SloSpec
) -> None:
    found = largest(predictor(SCENARIO, calibrated(FOLDER)), slo, low=20, high=50)
    assert abs(found / measured(runs, slo) - 1) < 0.05


def test_a_prediction_with_default_host_times_is_within_7_percent(runs: list[MeasuredRun], slo: SloSpec) -> None:
    found = largest(predictor(SCENARIO), slo, low=20, high=50)
    assert abs(found / measured(runs, slo) - 1) < 0.07


def test_the_measured_rate_is_known_to_half_a_percent(runs: list[MeasuredRun], slo: SloSpec) -> None:
    """By samples of its requests, and by runs that were repeated."""
    low, high = spread(runs, slo)
    assert 0 < (high - low) / measured(runs, slo) < 0.005
    first = [run for run in runs if not run.name.endswith("-again")]
    again = [run for run in runs if run.name not in ("r33", "r35")]
    assert len(first) == len(again) == len(runs) - 2
    assert abs(measured(first, slo) / measured(again, slo) - 1) < 0.005


def test_every_request_of_every_run_was_answered(runs: list[MeasuredRun]) -> None:
    scenario = load_scenario(SCENARIO)
    assert [run.rate for run in runs] == [31, 32, 33, 33, 33.5, 34, 35, 35, 36]
    for run in runs:
        assert {len(each) for each in run.latencies.values()} == {2600}
        assert all((each > 0).all() for each in run.latencies.values())
    assert "2600" in str(scenario.workload)


def test_the_first_limit_to_be_reached_is_the_answer() -> None:
    slo = SloSpec.model_validate({"ttft_p95": 1.0, "tpot_p95": 0.05})
    points = [(10.0, {"ttft_p95": 0.5, "tpot_p95": 0.01}), (20.0, {"ttft_p95": 2.0, "tpot_p95": 0.02})]
    assert crossing(points, slo) == pytest.approx(15.0)
    tight = [(rate, {**found, "tpot_p95": found["tpot_p95"] * 4}) for rate, found in points]
    assert 10 < crossing(tight, slo) < 15
    assert crossing([points[0]], slo) == inf
    assert isnan(crossing([points[1]], SloSpec.model_validate({"ttft_p95": 1.0})))


def test_bisection_finds_the_largest_rate() -> None:
    slo = SloSpec.model_validate({"ttft_p95": 1.0})
    assert largest(lambda rate, _: {"ttft_p95": rate / 30}, slo) == pytest.approx(30, rel=1e-3)


def test_percentiles_leave_out_what_is_not_known() -> None:
    slo = SloSpec.model_validate({"tpot_p50": 1.0})
    assert levels_of({"tpot": np.array([1.0, np.nan, 3.0])}, slo) == {"tpot_p50": 2.0}
