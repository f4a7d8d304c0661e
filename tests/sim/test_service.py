"""Limits and goodput: a request that is not served is late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import scenario_from_dict, simulate
from steelyard.scenario import SloSpec
from steelyard.sim.gaps import TokenGaps
from steelyard.sim.service import goodput_of, verdicts
from support.known import known

LIMIT = {"ttft_p90": 1.0, "tpot_p90": 0.1, "itl_p90": 0.1}


def table(ttft: list[float], served: list[bool]) -> dict[str, Any]:
    """Requests of ten tokens, the next of which come every 10 ms."""
    n = len(ttft)
    done = np.array(served)
    return {
        "id": np.arange(n),
        "status": np.where(done, "finished", "aborted").astype(object),
        "output": np.full(n, 10),
        "phase": np.full(n, "visible", dtype=object),
        "ttft": np.array(ttft),
        "tpot": np.where(done, 0.01, np.nan),
    }


def gaps(served: list[bool]) -> TokenGaps:
    return TokenGaps(((np.array([0.01]), np.array([9 * sum(served)])),)) if any(served) else TokenGaps(())


rows = st.lists(st.tuples(st.floats(0, 5), st.booleans()), min_size=1, max_size=60)


@given(rows, st.integers(1, 99))
def test_percentiles_are_numpys_where_all_are_served_and_never_better_where_some_are_not(
    found: list[tuple[float, bool]], percent: int
) -> None:
    ttft, served = [value for value, _ in found], [each for _, each in found]
    slo = SloSpec.model_validate({f"ttft_p{percent}": 2.0})
    all_served = verdicts(slo, table(ttft, [True] * len(ttft)), gaps([True] * len(ttft)))[f"ttft_p{percent}"]
    assert all_served.value == pytest.approx(float(np.percentile(ttft, percent))) and all_served.unserved == 0
    some = verdicts(slo, table(ttft, served), gaps(served))[f"ttft_p{percent}"]
    assert some.unserved == served.count(False)
    assert some.value is None or some.value >= known(all_served.value) - 1e-9
    assert not some.met or all_served.met
    late = np.where(served, ttft, 1e9)
    assert some.met == bool(np.percentile(late, percent) <= 2.0)


@pytest.mark.parametrize(("lost", "met"), [(0, True), (5, True), (20, False), (100, False)])
def test_every_kind_of_limit_is_missed_once_more_are_lost_than_it_allows(lost: int, met: bool) -> None:
    served = [i >= lost for i in range(100)]
    slo = SloSpec.model_validate(LIMIT)
    found = verdicts(slo, table([0.5] * 100, served), gaps(served))
    assert {name: each.met for name, each in found.items()} == dict.fromkeys(LIMIT, met)
    assert all(each.unserved == lost for each in found.values())
    assert goodput_of(slo, table([0.5] * 100, served), 10.0).share == (100 - lost) / 100


def test_an_output_of_one_token_cannot_miss_its_tpot_whether_it_is_served_or_not() -> None:
    requests = table([0.5] * 10, [i >= 9 for i in range(10)])
    requests["output"][:9] = 1
    found = verdicts(SloSpec.model_validate({"tpot_p50": 0.1}), requests, gaps([True]))["tpot_p50"]
    assert found.met and found.unserved == 0


def test_a_fleet_that_most_clients_leave_misses_its_limit() -> None:
    asked = {"arrivals": {"kind": "poisson", "rate": 300}, "requests": 1000, "prompt": 2000, "output": 200}
    run = {"model": "llama-3.1-8b", "fleet": {"gpu": "h100"}, "workload": {**asked, "abort_after": 2.0}}
    found = simulate(scenario_from_dict({**run, "slo": {"e2e_p95": 3.0}})).summary
    assert found.outcomes.aborted > 800
    verdict = found.slo["e2e_p95"]
    assert not verdict.met and verdict.value is None and verdict.unserved == found.outcomes.aborted
