"""Charts of a run: exact where they claim to be, and small whatever the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import UserError
from steelyard.plot import Chart, Marks
from steelyard.records.jsontext import compact
from steelyard.sim import Result
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.plots import distributions, load
from steelyard.sim.plots.axis import TimeAxis
from steelyard.sim.plots.binned import PARTS, Binned, integrals
from steelyard.sim.summary import Intervals
from support.report_samples import make_result, no_steps

moments = st.floats(0, 100, allow_nan=False)
intervals = st.lists(st.tuples(moments, moments, st.integers(0, 50)), min_size=1, max_size=30)


def line(chart: Chart, name: str = "") -> Marks:
    """The line of that name."""
    (found,) = (each for each in chart.marks if each.kind == "line" and each.name == name)
    return found


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


def test_curves_add_up_to_the_run() -> None:
    result = make_result(200, 3)
    plots = result.plot
    axis = plots.axis
    assert axis is not None
    finished = result.requests["status"] == "finished"
    for name, column in (("in", "prompt"), ("out", "output")):
        tokens = line(plots.throughput(), name).y.sum() * axis.width
        assert tokens == pytest.approx(result.requests[column][finished].sum())
    seconds = result.steps["end"] - result.steps["start"]
    held = float((result.steps["running"] * seconds).sum())
    assert line(plots.requests(), "running").y.sum() * axis.width == pytest.approx(held)
    used = 1 - result.steps["free_blocks"] / result.summary.kv.blocks_per_replica
    assert line(plots.kv(), "mean").y.sum() * axis.width * 3 == pytest.approx(float((used * seconds).sum()))
    assert line(plots.kv(), "fullest replica").y.max() == pytest.approx(used.max())


def test_a_band_is_around_its_mean_and_leaves_out_parts_without_weight() -> None:
    totals = np.arange(2.0 * PARTS)
    weights = np.ones(2 * PARTS)
    weights[:3] = 0.0
    found = Binned.of(totals, weights)
    assert found.low.tolist() == [3.0, PARTS] and found.high.tolist() == [PARTS - 1, 2 * PARTS - 1]
    assert found.mean.tolist() == [totals[:PARTS].sum() / (PARTS - 3), totals[PARTS:].mean()]
    plots = make_result(200, 3).plot
    for chart in (plots.throughput(), plots.requests(), plots.batch(), plots.kv()):
        bands = [each for each in chart.marks if each.kind == "band"]
        lines = [each for each in chart.marks if each.kind == "line"][: len(bands)]
        assert bands
        for band, mean in zip(bands, lines, strict=True):
            assert band.low is not None
            assert (band.low <= mean.y + 1e-9).all() and (mean.y <= band.y + 1e-9).all()


def test_batch_is_a_mean_over_busy_time_not_over_replicas_idle_time() -> None:
    result = make_result(10, 2)
    rows = {"start": [0.0, 0.0, 9.0], "end": [10.0, 5.0, 10.0], "n_decode": [4, 8, 0], "replica": [0, 1, 1]}
    result.steps = {key: np.zeros(3, dtype=np.int64) for key in result.steps}
    result.steps |= {key: np.array(column) for key, column in rows.items()}
    result.steps["prefill_requests"] = np.array([0, 0, 2])
    result.requests["arrival"] = np.linspace(0, 1, 10)
    result.requests["finish"] = np.full(10, 10.0)
    sizes = line(result.plot.batch(), "mean over replicas").y
    assert sizes[0] == pytest.approx(6)
    assert sizes[len(sizes) * 7 // 10] == pytest.approx(4)
    assert sizes[-1] == pytest.approx(3)


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make_result(60).plot.timeline().csv()
    monkeypatch.setattr(load, "_CHUNK", 17)
    parts = make_result(60).plot.timeline().csv()
    assert numbers(parts) == pytest.approx(numbers(whole), rel=1e-9, abs=1e-9)


def numbers(text: str) -> list[float]:
    return [float(cell) for row in text.splitlines()[1:] for cell in row.split(",")[1:] if cell[:1].isdigit()]


def test_distributions_are_the_quantiles() -> None:
    result = make_result(300)
    curve = line(result.plot.ttft())
    known = result.requests["ttft"][np.isfinite(result.requests["ttft"])]
    for share in (0.5, 0.95, 0.99):
        value = np.interp(share, curve.y, curve.x)
        assert (known <= value).mean() == pytest.approx(share, abs=0.01)
    assert curve.x[-1] == pytest.approx(known.max())


def test_bands_of_distributions_go_through_the_stated_intervals() -> None:
    result = make_result(300)
    spread = result.summary.ttft
    assert spread.p50 is not None and spread.p90 is not None and spread.p99 is not None
    stated = {0.5: (0.8 * spread.p50, 1.1 * spread.p50), 0.9: (0.85 * spread.p90, 1.2 * spread.p90)}
    stated[0.99] = (0.9 * spread.p99, 1.4 * spread.p99)
    bounds = {f"ttft.p{share * 100:.0f}": ends for share, ends in stated.items()} | {"ttft.mean": (0.01, 0.9)}
    result.summary = replace(result.summary, intervals=Intervals(0.9, bounds))
    (band,) = (each for each in result.plot.ttft().marks if each.kind == "band")
    assert band.name == "90% sure" and band.low is not None
    assert (band.x[0], band.x[-1]) == pytest.approx((stated[0.5][0], stated[0.99][1])), (
        "nothing is drawn beyond the outer percentiles"
    )
    for share, (low, high) in stated.items():
        assert np.interp(low, band.x, band.y) == pytest.approx(share)
        assert np.interp(high, band.x, band.low) == pytest.approx(share)
    assert all(each.kind != "band" for each in result.plot.tpot().marks)


def test_gaps_between_tokens_count_by_weight() -> None:
    result = make_result(10)
    result.gaps = TokenGaps(((np.array([0.01, 0.02, 0.5]), np.array([90, 9, 1])),))
    curve = line(result.plot.itl())
    assert curve.x[curve.y.tolist().index(0.99)] == 0.02 and curve.x[-1] == 0.5
    assert (curve.x == 0.01).sum() == (curve.y <= 0.9).sum()


def test_limits_are_drawn_on_their_metric() -> None:
    limit = {"limit": 0.5, "value": 0.2, "met": True}
    plots = make_result(10, slo={"ttft_p95": limit, "queue_p99": limit}).plot
    assert [(each.name, each.at) for each in plots.ttft().limits] == [("limit p95", 0.5)]
    assert not plots.tpot().limits


def every(result: Result) -> list[Any]:
    plots = result.plot
    charts = [*plots.latency().charts, *plots.timeline().charts, plots.arrivals()]
    return [*charts, plots.prompt_lengths(), plots.output_lengths(), plots.links(), plots.provenance()]


def test_nothing_served() -> None:
    result = no_steps(make_result(20))
    plots = result.plot
    assert not any(each.shown for each in (plots.ttft(), plots.itl(), plots.throughput(), plots.kv(), plots.arrivals()))
    assert plots.prompt_lengths().marks[0].y.sum() == 20
    assert all("NaN" not in each.svg() and "nan" not in each.csv() for each in every(result))


def test_no_requests_at_all() -> None:
    result = no_steps(make_result(5))
    result.requests = {key: column[:0] for key, column in result.requests.items()}
    assert result.plot.axis is None
    assert not any(each.shown for each in every(result)[:-1])


@pytest.mark.parametrize("lengths", [[768] * 9, [1, 2, 3], [1, 100_000], [5, 5, 6], [0, 3]])
def test_histogram_counts_everyone_once(lengths: list[int]) -> None:
    result = make_result(len(lengths), 1, reject=0)
    result.requests["prompt"] = np.array(lengths)
    (bars,) = result.plot.prompt_lengths().marks
    assert bars.ends is not None and bars.y.sum() == len(lengths)
    assert (bars.x < bars.ends).all() and (bars.x[1:] == bars.ends[:-1]).all()
    assert len(bars.x) <= distributions.HISTOGRAM_BARS


def test_size_does_not_follow_the_run() -> None:
    result = make_result(400)
    small = len(compact([each.data() for each in every(result)]))
    times = 500
    result.requests = {key: np.repeat(column, times) for key, column in result.requests.items()}
    result.steps = {key: np.repeat(column, 50) for key, column in result.steps.items()}
    large = [each.data() for each in every(result)]
    dots = [each for chart in large for each in chart.get("marks", ()) if each["kind"] == "dots"]
    assert max(len(each["x"]) for each in dots) == distributions.DOTS
    assert len(compact(large)) < 1.2 * small < 150_000


def test_a_pool_that_is_not_there() -> None:
    with pytest.raises(UserError, match="no pool is called 'decode'; choose from serve"):
        make_result(9).plot.requests("decode")


def test_a_curve_ends_where_its_interval_does() -> None:
    """An interval may go beyond the slowest request; its band stays within the axes."""
    result = make_result(200)
    slowest = float(np.nanmax(result.requests["tpot"]))
    bounds = {"tpot.p50": (0.5 * slowest, slowest), "tpot.p99": (0.9 * slowest, 3 * slowest)}
    result.summary = replace(result.summary, intervals=Intervals(0.9, bounds))
    chart = result.plot.tpot()
    (band,) = (each for each in chart.marks if each.kind == "band")
    for axis in (chart.x, chart.other):
        assert axis is not None and axis.high is not None and axis.high >= band.x.max() == pytest.approx(3 * slowest)


def test_a_curve_lies_within_its_band_however_it_bends() -> None:
    """Three quarters of the values are alike, the rest ten times as large: no line from p50 to p90 says that."""
    result = make_result(400)
    tpot = np.where(np.arange(400) % 4 < 3, 0.01, 0.1) * np.linspace(1, 1.001, 400)
    result.requests["tpot"][:], result.requests["status"][:] = tpot, "finished"
    levels = {name: float(np.quantile(tpot, share)) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
    bounds = {f"tpot.{name}": (0.9 * level, 1.1 * level) for name, level in levels.items()}
    result.summary = replace(result.summary, intervals=Intervals(0.9, bounds))
    chart = result.plot.tpot()
    (band,) = (each for each in chart.marks if each.kind == "band")
    curve = line(chart)
    assert band.low is not None
    for share in np.linspace(0.52, 0.97, 40):
        value = np.interp(share, curve.y, curve.x)
        assert np.interp(value, band.x, band.low) - 1e-6 <= share <= np.interp(value, band.x, band.y) + 1e-6, share
