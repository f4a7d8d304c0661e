"""Autoscaling policies: Kubernetes' worked examples, forecasts, and decisions that depend on the past alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.autoscale import PoolView
from steelyard.balance.scaling import (
    Ahead,
    AheadSettings,
    ExpectedRequests,
    Hpa,
    HpaSettings,
    Predictive,
    PredictiveSettings,
    TrafficHistory,
)
from steelyard.balance.scaling.forecast import constant, local_trend, moving_mean, past_errors, seasonal, upper_rate
from steelyard.balance.scaling.hpa import desired


def view(up: int, unfinished: int, *, now: float = 0.0, starting: int = 0, leaving: int = 0) -> PoolView:
    return PoolView(now, up, unfinished, (30.0,) * starting, leaving)


@pytest.mark.parametrize(
    ("up", "mean", "wanted"),
    [
        (3, 20.0, 6),  # twice the target: twice the replicas
        (4, 5.0, 2),  # half the target: half of them
        (50, 12.0, 60),  # 90 % for 75 %: 50 become 60
        (10, 10.9, 10),  # within the tolerance of 0.1
        (10, 9.1, 10),
        (10, 11.2, 12),  # rounded up
    ],
)
def test_hpa_follows_the_documented_ratio(up: int, mean: float, wanted: int) -> None:
    assert desired(view(up, round(up * mean)), HpaSettings(10.0)) == wanted


def test_hpa_takes_starting_replicas_for_idle_or_at_the_target() -> None:
    settings = HpaSettings(10.0)
    assert desired(view(2, 60, starting=2), settings) == 6
    assert desired(view(2, 60, starting=6), settings) == 8  # what starts is enough, so the direction would turn
    assert desired(view(4, 20, starting=1), settings) == 3  # as if the new one had 10
    assert desired(view(2, 60, leaving=40), settings) == 2  # requests of replicas that go do not count
    assert desired(view(0, 60, starting=1), settings) == 1  # no metric at all


def test_hpa_scales_down_to_the_highest_recommendation_of_its_window() -> None:
    rule = Hpa(HpaSettings(10.0, down_window=300.0))
    assert rule.wanted(view(8, 10, now=0.0)) == 8  # what was there counts
    assert rule.wanted(view(8, 50, now=150.0)) == 8
    assert rule.wanted(view(8, 10, now=301.0)) == 5
    assert rule.wanted(view(5, 10, now=451.0)) == 1


def test_hpa_adds_at_most_four_or_as_many_again_in_a_period() -> None:
    rule = Hpa(HpaSettings(1.0))
    assert rule.wanted(view(1, 100, now=0.0)) == 5
    assert rule.wanted(view(1, 100, now=5.0, starting=4)) == 5  # the period is not over
    assert rule.wanted(view(5, 100, now=15.0)) == 10
    assert rule.wanted(view(10, 100, now=30.0)) == 20


def test_predictors() -> None:
    assert constant([1.0, 4.0]) == 4.0
    assert moving_mean([9.0, 1.0, 2.0, 3.0], window=3) == 2.0
    assert local_trend([5.0] * 30) == pytest.approx(5.0)
    assert local_trend([float(i) for i in range(60)]) == pytest.approx(60.0, abs=0.5)
    assert seasonal([1.0, 2.0, 3.0] * 6, 3) == pytest.approx(1.0)
    assert seasonal([1.0, 2.0], 3) == 2.0


def test_the_margin_of_a_forecast_is_that_of_its_past_errors() -> None:
    steady = upper_rate([10] * 100, level=6, horizon=6, quantile=0.95, bucket=10.0)
    bursty = upper_rate([0, 0, 0, 0, 60, 0] * 17, level=6, horizon=2, quantile=0.95, bucket=10.0)
    assert steady == pytest.approx(1.0, rel=0.02) and bursty == 3.0  # 60 in 20 s, the most there was
    assert upper_rate([], 6, 6, 0.9, 10.0) == 0.0
    assert past_errors([1, 1, 1, 2, 2], level=2, horizon=2) == [pytest.approx(1.4), pytest.approx(1.8)]


class CountingTrial:
    """A pool whose replicas serve three expected requests each; the rest is late."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, int]] = []

    def risk(self, expected: ExpectedRequests, sizes: Sequence[tuple[float, int]]) -> float:
        self.asked = list(sizes)
        return max(0, len(expected) - 3 * sizes[-1][1]) / len(expected) / 0.05


def ahead(most: int = 20, hold: float = 0.1) -> Ahead:
    return Ahead(AheadSettings(quantile=0.5, hold=hold), CountingTrial(), 1, most)


def tell(rule: Ahead | Predictive, rate: float, until: float, since: float = 0.0, known: int = 0) -> None:
    """Requests at a constant rate, each answered after two seconds."""
    for i in range(int(since * rate), int(until * rate)):
        rule.arrived(known + i, i / rate, 100)
        rule.first_token(known + i, i / rate + 0.5, 0.5)
        rule.ended(known + i, i / rate + 2.0, 50, 0, 0.03)


@given(st.integers(1, 20))
def test_ours_takes_the_fewest_that_the_trial_finds_good(begins: int) -> None:
    rule = ahead()
    tell(rule, 0.5, 200.0)
    expected = len(rule._expected(200.0))
    wanted = rule._cheapest(PoolView(200.0, begins, 0), rule._expected(200.0))
    least = next(n for n in range(1, 21) if (expected - 3 * n) / expected / 0.05 <= 0.8)
    assert wanted == least


def test_ours_takes_what_is_nearly_the_best_if_none_is_good() -> None:
    rule = ahead(most=4)
    tell(rule, 0.5, 200.0)
    expected = len(rule._expected(200.0))
    late = [expected - 3 * n for n in range(5)]
    assert late[2] > 1.1 * late[4] >= late[3]
    assert rule.wanted(PoolView(200.0, 2, 0)) == 3


def test_requests_before_a_new_replica_serves_are_not_held_against_it() -> None:
    rule = ahead()
    tell(rule, 0.5, 200.0)
    expected, pool = rule._expected(200.0), PoolView(200.0, 2, 0)
    judged = [each.at >= 60.0 for each in expected]
    assert any(judged) and not all(judged)
    assert [each.judged for each in rule._open_to(expected, 3, pool)] == judged
    early = [each for each in expected if each.at < 60.0]
    assert rule._open_to(early, 3, pool) == early and rule._open_to(expected, 2, pool) == expected


def test_ours_keeps_replicas_for_a_while() -> None:
    rule = ahead(hold=100.0)
    tell(rule, 0.1, 200.0)
    assert rule.wanted(PoolView(200.0, 9, 0)) == 9
    assert rule.wanted(PoolView(301.0, 9, 0)) < 9


def test_a_trial_begins_with_the_present_replicas() -> None:
    rule = ahead()
    assert rule._sizes(PoolView(0.0, 2, 0, (10.0,)), 4) == [(0.0, 2), (10.0, 3), (60.0, 4)]
    assert rule._sizes(PoolView(0.0, 2, 0, (10.0,)), 2) == [(0.0, 2)]
    assert rule._sizes(PoolView(0.0, 3, 0), 1) == [(0.0, 1)]


def test_unfinished_requests_go_first_with_what_they_have() -> None:
    rule = ahead()
    tell(rule, 1.0, 100.0)
    rule.arrived(1000, 95.0, 700)
    rule.first_token(1000, 96.0, 1.0)
    rule.arrived(1001, 98.0, 800)
    running, waiting = rule._expected(100.0)[:2]
    assert not running.judged and running.given == running.prompt - 1 >= 700
    assert waiting.judged and waiting.waited == 2.0 and waiting.prompt == 800


class HalfPerSecond:
    """Each replica serves half a request per second."""

    def capacity(self, prompt: float, output: float, share: float) -> float:
        assert (prompt, output) == (100.0, 50.0)
        return 0.5 * share


def test_predictive_divides_the_prediction_by_the_capacity() -> None:
    rule = Predictive(PredictiveSettings(interval=60.0, share=0.5), HalfPerSecond())
    tell(rule, 2.0, 60.0)
    assert rule.wanted(PoolView(60.0, 1, 0)) == ceil(2.0 / 0.25)
    assert rule.wanted(PoolView(600.0, 5, 0)) == 5  # nothing came: nothing to divide by


def test_a_history_knows_outputs_only_at_their_end() -> None:
    history = TrafficHistory()
    history.arrived(7, 12.0, 100)
    history.arrived(7, 12.0, 100)  # it starts over
    (seen,) = history.between(0.0, 20.0)
    assert seen.output is None and history.counts(25.0, 9) == [0, 1]
    history.gave_up(7)
    assert not history.between(0.0, 20.0) and not history.open
