"""The made-up results of the report's tests."""

from __future__ import annotations

from steelyard.sim import simulate
from support.report_samples import make_result


def test_samples_look_like_a_simulated_run() -> None:
    """Otherwise the other tests would prove nothing about real results."""
    sample = make_result(8, 2, slo={"ttft_p95": {"limit": 1.0, "value": 0.1, "met": True}})
    real = simulate(sample.scenario)
    for mine, theirs in ((sample.requests, real.requests), (sample.steps, real.steps)):
        assert {name: column.dtype.kind in "OU" for name, column in mine.items()} == {
            name: column.dtype.kind in "OU" for name, column in theirs.items()
        }
    mine, theirs = sample.summary.to_dict(), real.summary.to_dict()
    assert set(mine) <= set(theirs)
    for key, value in mine.items():
        free = key in ("slo", "sources")  # whose keys are names
        assert not isinstance(value, dict) or free or set(value) <= set(theirs[key]), key
    assert len(real.itl) == len(sample.itl) == 2
