"""The largest rate of a fleet, and the smallest fleet for a rate."""

from __future__ import annotations

from typing import Any

import pytest

from bench.capacity import QWEN, scan
from steelyard.errors import UserError
from steelyard.scenario import Scenario, scenario_from_dict
from steelyard.search.capacity import RESOLUTION, capacity, largest_rate, smallest_fleet
from steelyard.search.limits import check_limits
from steelyard.search.loads import Load
from steelyard.search.outcome import observe
from steelyard.sim.run import simulate
from steelyard.sim.setup import set_up
from support.sizing import APART, small, small_load


def rate_of(scenario: Scenario) -> float:
    return largest_rate(set_up(scenario), Load(scenario)).rate


@pytest.mark.parametrize(
    "scenario",
    [
        small(),
        small(slo={"tpot_p95": 0.012}),
        small(slo={"e2e_mean": 0.8}),
        small_load(arrivals={"kind": "gamma", "rate": 8, "cv": 2}),
        small_load(session={"turns": 3, "think": 1.0}),
        scenario_from_dict(APART),
    ],
    ids=["small", "one limit", "mean", "bursty", "sessions", "prefill and decode apart"],
)
def test_within_two_percent_of_a_scan(scenario: Scenario) -> None:
    rate = rate_of(scenario)
    found = scan(scenario, rate / 1.3, rate * 1.3)
    assert found.first / 1.02 <= rate <= found.largest * 1.02


def test_qwen_on_four_h200_is_within_two_percent_of_a_scan() -> None:
    scenario = scenario_from_dict(QWEN)
    rate = rate_of(scenario)
    assert rate == pytest.approx(scan(scenario, rate / 1.06, rate * 1.15).largest, rel=0.02)


def test_carried_is_what_simulate_says() -> None:
    """At the answer `simulate` meets every limit and is steady; a little above it breaks one."""
    scenario = small()
    load, setup = Load(scenario), set_up(scenario)
    found = largest_rate(setup, load)
    below = simulate(load.at(found.rate)).summary
    assert all(limit.met for limit in below.slo.values())
    assert found.above is not None
    above = simulate(load.at(found.rate * RESOLUTION)).summary
    assert not all(limit.met for limit in above.slo.values()) or above.unsteady is not None


def test_an_answer_says_how_sure_it_is() -> None:
    found = capacity(small(), seeds=2)
    assert found.interval is not None and found.interval[0] < found.rate < found.interval[1]
    assert len(found.seeds) == 2 and {"step", "host"} <= found.costs.keys()
    assert all(rate <= found.rate * 1.02 for rate in found.costs.values()), "higher costs carry no more"
    assert found.binds in ("ttft_p95", "tpot_p95", "overload")
    alone = capacity(small(), seeds=0, costs=False)
    assert alone.rate == found.rate and alone.seeds == () and not alone.costs


def test_answers_are_the_same_with_any_number_of_workers() -> None:
    assert capacity(small(), seeds=2) == capacity(small(), seeds=2, workers=2)


def test_looser_limits_and_more_replicas_carry_more() -> None:
    assert rate_of(small(slo={"ttft_p95": 0.6, "tpot_p95": 0.06})) > rate_of(small())
    twice = rate_of(small(fleet={"gpu": "h100", "replicas": 2, "router": "least-outstanding"}))
    assert 1.7 < twice / rate_of(small()) < 2.6


def test_limits_that_no_rate_meets() -> None:
    found = capacity(small(slo={"tpot_p95": 0.0001}))
    assert found.rate == 0 and found.binds == "tpot_p95"


@pytest.mark.parametrize(
    ("slo", "told"),
    [
        ({}, "no limit that a rate could break"),
        ({"ttft": 1.0}, "no limit that a rate could break"),
        ({"ttft_p99": 0.5, "ttft_p50": 1.0}, r"ttft_p99 of 0\.5 s contradicts ttft_p50 of 1 s"),
        ({"e2e_p95": 0.5, "ttft_p95": 1.0}, r"e2e_p95 of 0\.5 s contradicts ttft_p95 of 1 s"),
        ({"attft_mean": 0.5, "ttft_mean": 1.0}, "attft_mean of 0.5 s contradicts ttft_mean"),
    ],
)
def test_limits_that_cannot_be_meant(slo: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=rf"small\.yaml: slo: {told}"):
        check_limits(small(slo=slo))


def test_limits_that_go_together() -> None:
    check_limits(small(slo={"ttft_p50": 0.5, "ttft_p99": 1.0, "e2e_p95": 2.0, "ttft_mean": 3.0}))


def test_the_smallest_fleet_carries_the_rate_and_one_less_does_not() -> None:
    scenario = small(fleet={"gpu": "h100", "replicas": 1, "router": "least-outstanding"})
    wanted = 3.4 * rate_of(scenario)
    found = smallest_fleet(scenario, wanted)
    assert found.copies == found.gpus >= 3 and found.binds
    for copies, meets in ((found.copies, True), (found.copies - 1, False)):
        sized = scenario.replace(fleet={"gpu": "h100", "replicas": copies, "router": "least-outstanding"})
        assert observe(set_up(sized), Load(sized).at(wanted)).meets(sized.slo) is meets


def test_what_one_less_misses_is_said_by_a_whole_run() -> None:
    """A run that is stopped when one limit is hopeless leaves requests unfinished, which then miss every limit."""
    scenario = small(fleet={"gpu": "h100", "replicas": 1}, slo={"ttft_p95": 100.0, "tpot_p95": 0.02})
    found = smallest_fleet(scenario, 2.5 * rate_of(scenario))
    assert found.copies > 1 and found.binds == "tpot_p95"


def test_a_fleet_keeps_its_proportions() -> None:
    found = smallest_fleet(scenario_from_dict(APART), 40.0)
    assert found.pools["prefill"] == 2 * found.pools["decode"]


def test_no_fleet_is_enough_for_a_limit_that_one_request_misses() -> None:
    found = smallest_fleet(small_load(requests=20).replace(slo={"tpot_p95": 0.0001}), 1.0)
    assert found.copies == 0 and found.binds == "tpot_p95"
