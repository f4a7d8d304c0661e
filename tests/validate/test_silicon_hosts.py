"""Hosts of the silicon sample: told from other models only, and used as what they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from steelyard.cost import HostTerms
from steelyard.validate.silicon_hosts import CANDIDATES, USUAL, RunHost, fitted_hosts
from steelyard.validate.silicon_points import Point, scenario_of
from support.silicon_sample import sample

__all__ = ["sample"]  # a fixture

FAST = next(each for each in CANDIDATES if each.pace == 0.65 and each.front > 0)


def test_a_host_scales_its_own_times_and_delays_users(sample: Any) -> None:
    (point,) = sample({})
    host = RunHost(0.5, 0.01, 2e-6)
    usual = HostTerms()
    assert host.terms == replace(host.terms, ingest_token=usual.ingest_token, compile=usual.compile)
    assert (host.terms.step, host.terms.eager) == (usual.step / 2, usual.eager / 2)
    assert host.before(point) == pytest.approx(0.012)
    (spec,) = host.delayed(scenario_of(point, "analytic"), point).workload.mix
    assert spec.arrivals is not None and spec.arrivals.model_dump()["think"]["seconds"] == pytest.approx(0.012)
    assert USUAL.terms == usual and USUAL.before(point) == 0


def test_no_point_of_a_model_has_a_say_in_its_own_host(sample: Any) -> None:
    """Models a and b were measured on the fast host, c on the usual one."""
    rows = [{"model_path": name, "silicon_ttft_ms": str(60 + i)} for i, name in enumerate("aabbc")]
    points = sample(*rows)

    def simulated(point: Point, host: RunHost) -> tuple[float, float]:
        true = FAST if point.model in "ab" else USUAL
        off = abs(host.pace - true.pace) + 10 * abs(host.front - true.front)
        return point.ttft * (1 + off), point.tpot * (1 + off)

    hosts = fitted_hosts(points[:4], simulated)
    assert hosts == {(True, "a"): FAST, (True, "b"): FAST}
    assert fitted_hosts(points, simulated)[True, "c"] == FAST  # by the others, although it is wrong
    assert fitted_hosts(points[4:], simulated) == {(True, "c"): USUAL}
