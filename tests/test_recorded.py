"""Two captures of a real vLLM 0.26 on an H200, made with our own recorder: what the package says of them by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard.validate.compare import Validation, validate
from steelyard.validate.crossed import cross_calibrate, read_sources

RECORDED = Path(__file__).parent / "data" / "h200-recorded"
FOLDERS = sorted(path for path in RECORDED.iterdir())


@pytest.fixture(scope="module", params=FOLDERS, ids=lambda path: path.name)
def found(request: pytest.FixtureRequest) -> Validation:
    return validate(request.param)


def test_real_runs_are_foretold_from_the_profile_alone(found: Validation) -> None:
    for each in found.workloads:
        bounds = {"tpot": 0.15, "e2e": 0.15, "ttft": 0.25}
        for metric, bound in bounds.items():
            error = each.latency[metric]["mean"].error
            assert error is not None and abs(error) < bound, (each.name, metric, error)
        error = each.figures["throughput"].error
        assert error is not None and abs(error) < 0.05, each.name
        blocks = each.figures["kv_blocks"].error
        assert blocks is not None and abs(blocks) < 0.005


def test_most_of_the_truth_lies_in_the_intervals(found: Validation) -> None:
    inside, of = found.coverage
    assert of == 68 and inside / of > 0.8


def test_terms_of_a_real_host_are_found_and_sensible() -> None:
    terms = cross_calibrate(read_sources(FOLDERS, None)).calibration.terms
    assert 1.0e-3 < terms.step < 3.0e-3 and 10e-6 < terms.request < 60e-6
    assert 0.15e-3 < terms.pieces < 0.45e-3
    assert terms.pieces < terms.eager < terms.experts < 3e-3
