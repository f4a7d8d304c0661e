"""Runs that are cut or stopped: what they know is true, and nothing is stopped that would have met its limits."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import UserError, scenario_from_dict
from steelyard.sim import FleetSetup, Result, set_up, simulate

FLEETS: dict[str, dict[str, Any]] = {
    "apart": {"gpu": "h100", "replicas": 2},
    "together": {"gpu": "h100", "replicas": 2, "router": "least-outstanding"},
    "handed over": {"pools": [{"role": "prefill", "gpu": "h100"}, {"role": "decode", "gpu": "h100", "name": "decode"}]},
    "told early": {
        "pools": [{"role": "prefill", "gpu": "h100"}, {"role": "decode", "gpu": "h100", "name": "decode"}],
        "transfer": {"first_token": "prefill"},
    },
}


@cache
def fleet(kind: str, rate: float, limits: tuple[tuple[str, float], ...] = (), session: bool = False) -> FleetSetup:
    work: dict[str, Any] = {
        "arrivals": {"kind": "poisson", "rate": rate},
        "requests": 120,
        "prompt": {"kind": "lognormal", "median": 600, "p95": 3000},
        "output": {"kind": "uniform", "min": 1, "max": 80},
    }
    if session:
        work["session"] = {"turns": 3, "think": 0.2}
    data = {"model": "llama-3.1-8b", "fleet": FLEETS[kind], "workload": work, "slo": dict(limits)}
    return set_up(scenario_from_dict({**data, "engine": {"max_num_seqs": 16}}))


LIMITS = st.sampled_from([f"{metric}_p{p}" for metric in ("ttft", "tpot", "e2e", "queue") for p in (50, 90, 95, 99)])
SECONDS = st.floats(1e-3, 20.0)


@settings(max_examples=60)
@given(st.sampled_from(list(FLEETS)), st.sampled_from([4.0, 40.0, 400.0]), LIMITS, SECONDS, st.booleans())
def test_only_hopeless_runs_are_stopped(kind: str, rate: float, name: str, seconds: float, session: bool) -> None:
    asked = fleet(kind, rate, ((name, seconds),), session and kind != "handed over")
    whole, cut = simulate(asked), simulate(asked, stop={name: seconds})
    if "unfinished" in cut.requests["status"].tolist():
        assert not whole.summary.slo[name].met, whole.summary.slo[name]
        assert any("cannot be met" in note for note in cut.notes)
    else:
        assert repr(cut.requests["finish"].tolist()) == repr(whole.requests["finish"].tolist())


@pytest.mark.parametrize("kind", FLEETS)
def test_a_run_far_beyond_its_limit_ends_soon(kind: str) -> None:
    asked = fleet(kind, 400.0)
    whole, cut = simulate(asked), simulate(asked, stop={"ttft_p95": 0.05})
    assert cut.summary.steps < 0.6 * whole.summary.steps
    assert cut.summary.outcomes.finished < 120


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("kind", FLEETS)
@pytest.mark.parametrize("until", [0.0, 0.7, 3.0, 1e4])
def test_a_cut_run_is_the_beginning_of_the_whole_one(kind: str, until: float, session: bool) -> None:
    asked = fleet(kind, 40.0, (), session and kind in ("apart", "together"))
    whole, cut = simulate(asked), simulate(asked, until=until)
    ended = whole.requests["finish"] <= until
    assert (cut.requests["status"] == np.where(ended, "finished", "unfinished")).all()
    for name in ("finish", "tpot", "e2e"):
        assert repr(cut.requests[name].tolist()) == repr(np.where(ended, whole.requests[name], np.nan).tolist())
    seen = whole.requests["first_token"] <= until
    shown = cut.requests["first_token"]
    assert not (np.isfinite(shown) & ~seen).any() and np.isfinite(shown[ended]).all()
    assert any("cut at" in note for note in cut.notes)


def test_only_what_is_asked_for_is_kept() -> None:
    asked = fleet("apart", 40.0)
    parts = {name: simulate(asked, keep=[name]) for name in ("summary", "requests", "steps")}
    whole = simulate(asked)
    assert parts["summary"].summary == whole.summary
    for name, part in parts.items():
        for other in ("summary", "requests", "steps"):
            assert part.has(other) == (other == name)
            if other != name:
                with pytest.raises(UserError, match=r"no (summary|requests|steps)"):
                    getattr(part, other)
    with pytest.raises(UserError, match="keep: 'gaps'"):
        simulate(asked, keep=["gaps"])  # type: ignore[list-item]


def test_limits_that_nobody_knows_are_refused() -> None:
    with pytest.raises(UserError, match="simulate: stop: ttft_95: unknown limit"):
        simulate(fleet("apart", 40.0), stop={"ttft_95": 1.0})


def test_a_fleet_that_changes_is_cut_too() -> None:
    data = {
        "model": "llama-3.1-8b",
        "fleet": {"gpu": "h100", "replicas": 2},
        "workload": {"arrivals": {"kind": "poisson", "rate": 20.0}, "requests": 100, "prompt": 500, "output": 50},
        "dynamics": [{"at": 1.0, "crash": {"pool": "serve", "replica": 0, "restart_after": 2.0}}],
    }
    cut: Result = simulate(scenario_from_dict(data), until=2.0)
    assert set(cut.requests["status"].tolist()) == {"finished", "unfinished"}
    assert cut.requests["retries"].sum() > 0
    assert simulate(scenario_from_dict(data), stop={"ttft_p50": 1e-6}).summary.outcomes.finished == 100
