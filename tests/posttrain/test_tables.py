"""The tables of a run: each column against what it is made of."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.posttrain.held import covered
from steelyard.posttrain.result import PosttrainResult
from steelyard.posttrain.run import posttrain
from steelyard.scenario import posttrain_from_dict

SMALL: dict[str, Any] = {
    "model": "qwen3-14b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 8, "group": 4, "learning": {"samples": 200, "best": 0.6}},
    "rollout": [{"tp": 1, "replicas": 4}],
    "training": {"tp": 4, "dp": 1, "micro_batch_tokens": 16384},
    "steps": 4,
}
KINDS: dict[str, dict[str, Any]] = {
    "split": {"mode": "split"},
    "asynchronous": {"mode": "asynchronous", "streaming": True, "router": "round-robin"},
    "colocated": {"mode": "colocated", "tail": {"kind": "over-sampling", "factor": 1.5}},
    "partial": {"mode": "asynchronous", "tail": "partial"},
}


@cache
def ran(kind: str) -> PosttrainResult:
    return posttrain(posttrain_from_dict({**SMALL, **KINDS[kind]}))


@pytest.fixture(params=KINDS)
def result(request: pytest.FixtureRequest) -> PosttrainResult:
    return ran(request.param)


def test_stages_add_up_to_steps_and_steps_to_the_run(result: PosttrainResult) -> None:
    steps = result.steps
    stages = steps["waiting"] + steps["handing_over"] + steps["training"] + steps["sync"]
    assert stages == pytest.approx(steps["seconds"])
    assert steps["begun"][1:].tolist() == steps["synced"][:-1].tolist() and steps["begun"][0] == 0
    assert steps["seconds"].sum() == pytest.approx(result.summary["seconds"])
    for name, mean in result.summary["training"].items():
        assert steps[f"training_{name}"].mean() == pytest.approx(mean)


def test_gpus_are_busy_or_idle_or_in_a_bubble_as_the_summary_says(result: PosttrainResult) -> None:
    steps, shares = result.steps, result.summary["gpu_time"]
    for role, names in (("rollout", ["busy"]), ("training", ["busy", "bubble"])):
        held = steps[f"{role}_gpu_seconds"]
        assert held == pytest.approx(steps[f"{role}_gpus"] * steps["seconds"])
        for name in names:
            column = steps[f"{role}_{name}_gpu_seconds"]
            assert (column >= 0).all() and (column <= held * (1 + 1e-9)).all()
            assert column.sum() == pytest.approx(shares[role][name] * held.sum())


def test_cost_is_that_of_all_gpus_and_follows_the_price() -> None:
    result = ran("split")
    cost = result.summary["cost"]
    assert cost["usd"] == pytest.approx(8 * result.summary["seconds"] / 3600 * cost["usd_per_gpu_hour"])
    assert result.steps["usd"].sum() == pytest.approx(cost["usd"])
    dear = posttrain(posttrain_from_dict({**SMALL, **KINDS["split"], "price_per_hour": 7 * cost["usd_per_gpu_hour"]}))
    assert dear.steps["usd"] == pytest.approx(7 * result.steps["usd"])


def test_trajectories_say_what_became_of_them(result: PosttrainResult) -> None:
    table, steps = result.trajectories, result.steps
    trained = table["step"] >= 0
    assert not (trained & table["given_up"]).any()
    assert (table["staleness"][trained] == (table["step"] - table["version"])[trained]).all()
    assert (table["staleness"][~trained] == -1).all()
    assert (table["oldest"] >= table["version"]).all()  # tokens are not older than the weights it began with
    assert np.bincount(table["step"][trained], weights=table["generated"][trained]).tolist() == steps["tokens"].tolist()
    for step, (first, last) in enumerate(zip(steps["rollout_from"], steps["rollout_until"], strict=True)):
        own = table["step"] == step
        assert (table["begun"][own].min(), table["ended"][own].max()) == (first, last)
        assert np.mean(table["staleness"][own]) == steps["staleness_mean"][step]
        assert table["staleness"][own].max() == steps["staleness_max"][step]
    replicas = 4
    assert (table["replica"][trained] >= 0).all() and table["replica"].max() < replicas
    assert (table["context"] >= table["generated"]).all() and (table["rerouted"] >= 0).all()


def test_a_router_that_goes_round_sends_turns_elsewhere_and_a_sticky_one_does_not() -> None:
    said = {**SMALL, "mode": "split"}
    round_robin, sticky = (
        posttrain(posttrain_from_dict({**said, "router": router})).trajectories for router in ("round-robin", "sticky")
    )
    assert (round_robin["rerouted"] < round_robin["turns"]).all() and round_robin["rerouted"].sum() > 0
    assert sticky["rerouted"].sum() == 0


def test_what_over_sampling_gives_up_is_there() -> None:
    table = ran("colocated").trajectories
    assert int(table["given_up"].sum()) == ran("colocated").summary["tail"]["thrown_away"]["samples"] > 0


def test_rewards_are_the_summarys_and_unknown_without_a_learning_curve() -> None:
    found = ran("split")
    assert found.steps["reward"].tolist() == [reward for _, reward in found.summary["reward"]]
    still = {"kind": "schedule", "points": [{"step": 0}]}
    asked = {"preset": "search", "prompts": 8, "group": 4, "learning": None, "drift": still}
    without = posttrain_from_dict({**SMALL, "trajectories": asked})
    assert np.isnan(posttrain(without).steps["reward"]).all()


def test_the_files_are_the_same_for_the_same_run_and_small(tmp_path: Path) -> None:
    said = {**SMALL, **KINDS["partial"], "trajectories": {"preset": "search", "prompts": 128, "group": 8}}
    for name in ("a", "b"):
        posttrain(posttrain_from_dict(said)).save(tmp_path / name)
    for name in ("steps.parquet", "trajectories.parquet", "scenario.json", "summary.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    rows = len(PosttrainResult.load(tmp_path / "a").trajectories["id"])
    assert (tmp_path / "a" / "trajectories.parquet").stat().st_size < 50 * rows + 10_000


@given(
    st.lists(st.floats(0, 5), min_size=0, max_size=12),
    st.lists(st.floats(0.01, 4), min_size=1, max_size=6),
)
def test_covered_counts_each_second_once(gaps: list[float], widths: list[float]) -> None:
    """Against adding up each span in each bin."""
    marks = np.cumsum(gaps[: len(gaps) // 2 * 2])
    start, end, edges = marks[::2], marks[1::2], np.cumsum([0.0, *widths])
    expected = [
        sum(max(0.0, min(stop, right) - max(begin, left)) for begin, stop in zip(start, end, strict=True))
        for left, right in pairwise(edges)
    ]
    assert covered(start, end, edges) == pytest.approx(expected, abs=1e-9)
