"""Shares of time and memory stay shares, whatever happens to requests during a step or a transfer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import simulate
from steelyard.scenario import scenario_from_dict
from steelyard.sim.summary import Summary

FLEETS: dict[str, Any] = {
    "one": {"gpu": "h100"},
    "scaled": {"gpu": "h100", "replicas": 1, "autoscale": {"max": 3, "target": 2, "every": 0.05, "startup": 0.1}},
    "apart": {
        "pools": [{"role": "prefill", "gpu": "h100"}, {"role": "decode", "gpu": "h100", "replicas": 2}],
        "topology": {"gpus_per_node": 1, "nic": "1Gb"},
    },
    "stages": {"gpu": "h100", "pp": 2},
}
TIERS = [{"kind": "host", "size": "1GB", "bandwidth": "1MB", "write": "through"}]


def run(fleet: str, prompt: int, abort_after: float, until: float | None = None, **more: Any) -> Summary:
    written = {
        "model": "llama-3.1-8b",
        "fleet": FLEETS[fleet],
        "engine": {"max_num_batched_tokens": 65536, **more.pop("engine", {})},
        "workload": {
            "arrivals": {"kind": "poisson", "rate": 20},
            "requests": 8,
            "prompt": prompt,
            "output": 40,
            "abort_after": abort_after,
        },
        "cost": {"source": "analytic"},
        **more,
    }
    return simulate(scenario_from_dict(written), until=until).summary


def test_a_step_that_outlasts_its_aborted_request_counts_once() -> None:
    """It took 2.9 s of a run of 0.05 s: 5,957 % busy, and 805 % of the KV cache in use on average."""
    workload = {"arrivals": {"kind": "burst"}, "requests": 1, "prompt": 60000, "output": 10, "abort_after": 0.03}
    summary = run("one", 60000, 0.03, workload=workload)
    assert summary.outcomes.aborted == 1
    assert 0.9 < summary.busy <= 1 and 0.5 < summary.mfu < 1
    assert 0 < summary.kv.mean_use <= summary.kv.peak_use


@given(
    fleet=st.sampled_from(sorted(FLEETS)),
    prompt=st.sampled_from([16, 2000, 30000]),
    abort_after=st.floats(0.001, 3.0),
    until=st.none() | st.floats(0.01, 3.0),
    tiered=st.booleans(),
)
@settings(max_examples=60)
def test_shares_never_exceed_one(
    fleet: str, prompt: int, abort_after: float, until: float | None, tiered: bool
) -> None:
    """`Summary` checks itself; only a what-if run with faster kernels may exceed the peaks of MFU and MBU."""
    tiers = {"tiers": TIERS} if tiered and fleet == "one" else {}
    summary = run(fleet, prompt, abort_after, until, engine=tiers)
    for pool in summary.pools:
        assert 0 <= pool.mfu <= 1 and 0 <= pool.mbu <= 1
    for tier in summary.prefix_cache.by_tier.values():
        for use in (tier.read_use, tier.write_use):
            assert use is None or 0 <= use <= 1


def test_a_summary_with_impossible_shares_is_refused() -> None:
    summary = run("one", 100, 10.0)
    with pytest.raises(AssertionError, match=r"the fleet: busy of 59\.57"):
        replace(summary, busy=59.57)
    with pytest.raises(AssertionError, match="mean above peak"):
        replace(summary, kv=replace(summary.kv, mean_use=0.2, peak_use=0.1))
