"""Loads: the same requests in the same order, closer together or further apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import UserError
from steelyard.scenario import Scenario, scenario_from_dict
from steelyard.search.loads import Load
from steelyard.workload import Workload, build_workload
from support.sizing import SMALL, small_load

SESSIONS = {"session": {"turns": 3, "think": 5.0, "system": 100}, "requests": 60}
ARRIVALS: list[dict[str, Any]] = [
    {"kind": "poisson", "rate": 4},
    {"kind": "gamma", "rate": 4, "cv": 2.5},
    {"kind": "constant", "rate": 4},
    {"kind": "varying", "profile": {"mean": 4, "amplitude": 3, "period": 20}},
    {"kind": "varying", "profile": [[0, 1], [10, 8], [30, 2]]},
]


def drawn(scenario: Scenario) -> Workload:
    return build_workload(scenario.workload, scenario.seed, scenario.base_dir)


def check_scaled(scenario: Scenario, factor: float) -> None:
    """At another rate the same requests arrive in the same order, at times in proportion."""
    load = Load(scenario)
    one, other = drawn(scenario), drawn(load.at(load.own * factor))
    assert len(one) == len(other)
    for name in ("prompt", "output", "after", "think", "priority", "label", "stream"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    first = one.after < 0
    assert np.allclose(one.at[first], other.at[first] * factor, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("arrivals", [each for each in ARRIVALS if each["kind"] != "varying"], ids=str)
@settings(max_examples=15)
@given(factor=st.floats(0.05, 20), seed=st.integers(0, 1000))
def test_steady_loads_keep_requests_and_order(arrivals: dict[str, Any], factor: float, seed: int) -> None:
    check_scaled(small_load(arrivals=arrivals).replace(seed=seed), factor)


@pytest.mark.parametrize("factor", [0.25, 1.0, 3.0])
def test_sessions_keep_their_pauses(factor: float) -> None:
    check_scaled(small_load(**SESSIONS), factor)


@pytest.mark.parametrize("arrivals", ARRIVALS, ids=str)
@pytest.mark.parametrize("factor", [0.5, 4.0])
def test_rates_are_what_was_asked(arrivals: dict[str, Any], factor: float) -> None:
    amount = {"duration": 400} if arrivals["kind"] == "varying" else {"requests": 2000}
    workload = {"arrivals": arrivals, "prompt": 100, "output": 5, **amount}
    load = Load(scenario_from_dict({**SMALL, "workload": workload}))
    assert Load(load.at(load.own * factor)).own == pytest.approx(load.own * factor, rel=0.1)
    same = load.at(load.own)
    assert np.allclose(drawn(same).at, drawn(load.scenario).at)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_mixes_keep_proportions(factor: float) -> None:
    chat = {"name": "chat", "share": 3, "prompt": 100, "output": 20}
    code = {"name": "code", "share": 1, "prompt": 900, "output": 50}
    mixed = {"mix": [chat, code], "arrivals": {"kind": "poisson", "rate": 8}, "requests": 400}
    load = Load(scenario_from_dict({**SMALL, "workload": mixed}))
    assert load.own == pytest.approx(8)
    check_scaled(load.scenario, factor)
    at = load.at(8 * factor)
    assert at.workload.shares() == [0.75, 0.25]
    work = drawn(at)
    assert (work.prompt == 100).sum() == 300 and (work.prompt == 900).sum() == 100


def test_workloads_with_their_own_rates_keep_proportions() -> None:
    chat = {"prompt": 100, "output": 20, "requests": 60, "arrivals": {"kind": "poisson", "rate": 6}}
    batch = {"prompt": 900, "output": 50, "requests": 20, "arrivals": {"kind": "constant", "rate": 2}}
    load = Load(scenario_from_dict({**SMALL, "workload": [chat, batch]}))
    assert load.own == pytest.approx(8)
    rates = [spec.arrivals.rate for spec in load.at(16).workload.mix]  # type: ignore[union-attr]
    assert rates == [12, 4]
    longer = load.at(8, requests=800)
    assert [spec.requests for spec in longer.workload.mix] == [600, 200]


def trace(folder: Path) -> Scenario:
    rows = [{"timestamp": 500 * i, "input_length": 100 + i, "output_length": 5, "hash_ids": [i]} for i in range(41)]
    (folder / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    written = {**SMALL, "workload": {"trace": {"file": "trace.jsonl"}}}
    return scenario_from_dict(written, base_dir=folder)


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_traces_are_played_faster(tmp_path: Path, factor: float) -> None:
    scenario = trace(tmp_path)
    assert Load(scenario).own == pytest.approx(2.0)
    check_scaled(scenario, factor)


@pytest.mark.parametrize("arrivals", [{"kind": "closed", "users": 4}, {"kind": "burst"}], ids=str)
def test_arrivals_without_a_rate_are_refused(arrivals: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"arrivals: (closed|burst) arrivals have no rate that could be raised"):
        Load(small_load(arrivals=arrivals))


def test_a_single_arrival_has_no_rate() -> None:
    varying = {"kind": "varying", "profile": [[0, 5]]}
    with pytest.raises(UserError, match="too few arrivals to have a rate"):
        _ = Load(small_load(arrivals=varying, requests=1)).own
