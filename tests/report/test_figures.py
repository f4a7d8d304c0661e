"""The figures' numbers: exact where they claim to be, and small whatever the run."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.records.jsontext import compact
from steelyard.report import figures
from steelyard.report.axis import TimeAxis
from steelyard.report.figures import figure_data, integrals
from steelyard.report.loads import replica_loads, unserved_reasons, workload_shares
from steelyard.sim.gaps import TokenGaps
from support.report_samples import make_result, no_steps

moments = st.floats(0, 100, allow_nan=False)
intervals = st.lists(st.tuples(moments, moments, st.integers(0, 50)), min_size=1, max_size=30)


@given(intervals, st.integers(1, 40))
def test_integrals_are_exact(rows: list[tuple[float, float, int]], bins: int) -> None:
    start = np.array([min(a, b) for a, b, _ in rows])
    end = np.array([max(a, b) for a, b, _ in rows])
    value = np.array([v for *_, v in rows])
    axis = TimeAxis(0.0, 100.0, bins)
    edges = np.linspace(0, 100, bins + 1)
    overlap = np.minimum(end[:, None], edges[None, 1:]) - np.maximum(start[:, None], edges[None, :-1])
    expected = (value[:, None] * np.maximum(overlap, 0)).sum(axis=0)
    np.testing.assert_allclose(integrals(axis, start, end, value)[0], expected, atol=1e-9)


def test_series_add_up_to_the_run() -> None:
    result = make_result(200, 3)
    data = figure_data(result)
    start, end, bins = data["time"]
    width = (end - start) / bins
    finished = result.requests["status"] == "finished"
    for name, column in (("input", "prompt"), ("output", "output")):
        assert sum(data["series"][name]) * width == pytest.approx(result.requests[column][finished].sum(), rel=1e-4)
    seconds = result.steps["end"] - result.steps["start"]
    held = float((result.steps["running"] * seconds).sum())
    assert sum(data["series"]["running"]) * width == pytest.approx(held, rel=1e-4)
    used = 1 - result.steps["free_blocks"] / result.summary.kv.blocks_per_replica
    assert sum(data["series"]["kv"]) * width * 3 == pytest.approx(float((used * seconds).sum()), rel=1e-4)
    assert max(data["series"]["kv_peak"]) == pytest.approx(used.max(), rel=1e-4)


def test_batch_is_a_mean_over_busy_time_not_over_replicas_idle_time() -> None:
    result = make_result(10, 2)
    rows = {"start": [0.0, 0.0, 9.0], "end": [10.0, 5.0, 10.0], "n_decode": [4, 8, 0], "replica": [0, 1, 1]}
    result.steps = {key: np.zeros(3, dtype=np.int64) for key in result.steps}
    result.steps |= {key: np.array(column) for key, column in rows.items()}
    result.steps["prefill_requests"] = np.array([0, 0, 2])
    result.requests["arrival"] = np.linspace(0, 1, 10)
    result.requests["finish"] = np.full(10, 10.0)
    series = figure_data(result)["series"]
    assert series["batch"][0] == pytest.approx(6)
    assert series["batch"][len(series["batch"]) * 7 // 10] == pytest.approx(4)
    assert series["batch"][-1] == pytest.approx(3)


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = figure_data(make_result(60))
    monkeypatch.setattr(figures, "_CHUNK", 17)
    parts = figure_data(make_result(60))
    for name, series in whole["series"].items():
        np.testing.assert_allclose(parts["series"][name], series, rtol=2e-5, atol=1e-9)


def test_distributions_are_the_quantiles() -> None:
    result = make_result(300)
    data = figure_data(result)
    shares = np.array(data["quantiles"])
    known = result.requests["ttft"][np.isfinite(result.requests["ttft"])]
    for share in (0.5, 0.95, 0.99):
        value = np.interp(share, shares, np.array(data["cdfs"]["ttft"]))
        assert (known <= value).mean() == pytest.approx(share, abs=0.01)
    assert data["cdfs"]["ttft"][-1] == pytest.approx(known.max(), rel=1e-4)


def test_gaps_between_tokens_count_by_weight() -> None:
    result = make_result(10)
    result.gaps = TokenGaps(((np.array([0.01, 0.02, 0.5]), np.array([90, 9, 1])),))
    data = figure_data(result)
    shares, values = data["quantiles"], data["cdfs"]["itl"]
    assert values[shares.index(0.99)] == 0.02
    assert values[-1] == 0.5
    assert sum(v == 0.01 for v in values if v) == sum(s <= 0.9 for s in shares)


def test_limits_are_drawn_on_their_metric() -> None:
    limit = {"limit": 0.5, "value": 0.2, "met": True}
    drawn = figure_data(make_result(10, slo={"ttft_p95": limit, "queue_p99": limit}))["limits"]
    assert drawn == {"ttft": [("p95", 0.5)], "tpot": [], "itl": [], "e2e": []}


def test_nothing_served() -> None:
    data = figure_data(no_steps(make_result(20)))
    assert all(not values for values in data["cdfs"].values())
    assert data["series"] == {}
    assert data["arrivals"]["at"] == []
    assert sum(data["prompt"]["counts"]) == 20


def test_no_requests_at_all() -> None:
    result = no_steps(make_result(5))
    result.requests = {key: column[:0] for key, column in result.requests.items()}
    data = figure_data(result)
    assert data["time"] is None
    assert data["prompt"] == {"edges": [], "counts": []}


@pytest.mark.parametrize("lengths", [[768] * 9, [1, 2, 3], [1, 100_000], [5, 5, 6]])
def test_histogram_counts_everyone_once(lengths: list[int]) -> None:
    result = make_result(len(lengths), 1, reject=0)
    result.requests["prompt"] = np.array(lengths)
    found = figure_data(result)["prompt"]
    assert sum(found["counts"]) == len(lengths)
    assert found["edges"] == sorted(set(found["edges"]))
    assert len(found["counts"]) <= figures.HISTOGRAM_BARS


def test_size_does_not_follow_the_run() -> None:
    result = make_result(400)
    small = len(compact(figure_data(result)))
    times = 500
    result.requests = {key: np.repeat(column, times) for key, column in result.requests.items()}
    result.steps = {key: np.repeat(column, 50) for key, column in result.steps.items()}
    large = json.loads(compact(figure_data(result)))
    assert len(large["arrivals"]["at"]) == figures.DOTS
    assert len(compact(large)) < 1.2 * small < 60_000


def test_replica_loads_add_up() -> None:
    result = make_result(200, 7)
    loads = replica_loads(result)
    finished = result.requests["status"] == "finished"
    assert len(loads.requests) == 7
    assert loads.requests.sum() == (result.requests["replica"] >= 0).sum()
    assert loads.output_tokens.sum() == result.requests["output"][finished].sum()
    first = result.steps["replica"] == 0
    seconds = (result.steps["end"] - result.steps["start"])[first]
    assert loads.busy[0] == pytest.approx(seconds.sum() / result.summary.duration_s)


def test_workloads_of_a_mix_and_reasons() -> None:
    result = make_result(100, labels=("b", "a"), reject=0.3)
    shares, total = workload_shares(result.requests, 10)
    assert [share.label for share in shares] == ["b", "a"]
    assert total == 2
    assert sum(share.requests for share in shares) == 100
    lost = int((result.requests["status"] == "rejected").sum())
    assert unserved_reasons(result.requests) == [("rejected", "prompt too long", lost)]
    assert workload_shares(result.requests, 1)[1] == 2
