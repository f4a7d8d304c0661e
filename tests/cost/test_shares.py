"""Of each family's time, the share of every provenance."""

from __future__ import annotations

import numpy as np
import pytest

from steelyard.cost.errors import ERRORS
from steelyard.cost.shares import FamilyShares
from steelyard.cost.source import ANALYTIC, EXTRAPOLATED, MEASURED, PROVENANCES, Estimate
from steelyard.scenario import scenario_from_dict
from steelyard.sim.setup import set_up

ROWS = np.arange(65, dtype=np.float64)


def test_operators_count_by_their_time_and_numbers_of_rows_alike() -> None:
    shares = FamilyShares(64)
    shares.add("gemm", 3, Estimate.all_of(ROWS, MEASURED))
    shares.add("gemm", 1, Estimate.all_of(ROWS, ANALYTIC))
    assert shares.by_family() == {"gemm": {"measured": pytest.approx(0.75), "analytic": pytest.approx(0.25)}}
    halves = FamilyShares(64)  # 1, 2, 4, 8 rows measured; 16, 32, 64 beyond
    found = Estimate(ROWS**2, np.where(ROWS > 8, EXTRAPOLATED, MEASURED).astype(np.int8))
    halves.add("gemm", 1, found)
    assert halves.by_family()["gemm"] == {"measured": pytest.approx(4 / 7), "extrapolated": pytest.approx(3 / 7)}


def test_layers_of_another_count_as_often_as_they_are_taken() -> None:
    layer, all_layers = FamilyShares(64), FamilyShares(64)
    layer.add("small", 1, Estimate.all_of(ROWS, MEASURED))
    all_layers.add("small", 1, Estimate.all_of(ROWS, ANALYTIC))
    all_layers.take(layer, 3)
    assert all_layers.by_family()["small"]["measured"] == pytest.approx(0.75)


@pytest.mark.parametrize("source", ["auto", "analytic"])
def test_a_compiled_engine_has_all_families(source: str) -> None:
    run = {"model": "llama-3.1-8b", "fleet": {"gpu": "h200", "tp": 2}, "cost": {"source": source}}
    asked = {"arrivals": {"kind": "poisson", "rate": 1}, "requests": 1, "prompt": 10, "output": 2}
    (pool,) = set_up(scenario_from_dict({**run, "workload": asked})).pools
    shares = pool.cost.shares
    assert set(shares) == {"gemm", "attention", "small", "collective"}
    for each in shares.values():
        assert sum(each.values()) == pytest.approx(1)
        assert set(each) <= set(PROVENANCES)
    assert (set(shares["gemm"]) == {"analytic"}) == (source == "analytic")


def test_less_trust_means_a_larger_error() -> None:
    for family in ERRORS["measured"]:
        errors = [ERRORS[kind][family] for kind in ("measured", "interpolated", "transferred", "analytic")]
        assert errors == sorted(errors), family
