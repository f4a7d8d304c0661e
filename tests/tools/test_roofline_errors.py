"""The roofline against measured kernels."""

from __future__ import annotations

from functools import cache

from steelyard.cost.bundle import Bundle, shipped_bundle
from steelyard.hardware import find_gpu
from tools.roofline_errors import EFFICIENCIES, Against, Ideal, compare, comparisons, table


@cache
def found() -> list[Against]:
    bundle = shipped_bundle("h200")
    assert bundle is not None
    rest = {family: rows[::7] for family, rows in bundle.families.items() if family != "norm"}
    few = Bundle(bundle.about, {**rest, "norm": bundle.families["norm"]})
    return list(comparisons(few, find_gpu("h200")))


def test_what_takes_longer_bounds_a_kernel() -> None:
    assert compare(Ideal("gemm", 8.0, 4.0, 15.0), 10.0) == Against("gemm, arithmetic", 0.8, 0.5)
    assert compare(Ideal("gemm", 4.0, 8.0, 5.0), 10.0) == Against("gemm, memory", 0.8, -0.5)


def test_no_kernel_is_faster_than_the_peak() -> None:
    """Which would mean that its work or the GPU's peak is counted wrongly."""
    assert min(each.reached for each in found()) > 0.0 and max(each.reached for each in found()) < 1.0


def test_every_efficiency_is_compared_and_matrices_are_near() -> None:
    assert {each.bound for each in found()} == set(EFFICIENCIES)
    matrices = [abs(each.error) for each in found() if each.bound.startswith("gemm")]
    assert sorted(matrices)[len(matrices) // 2] < 0.10
    assert len(table(found()).splitlines()) == len(EFFICIENCIES) + 2
