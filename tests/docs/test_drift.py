"""Figures on pages about post-training are those that the code gives today: one cheap row of each is run again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from bench.routers import quarter, roll_out
from steelyard import load_posttrain
from steelyard.posttrain import plan, posttrain
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.scenario import posttrain_from_dict
from support.paths import EXAMPLES, ROOT

DOCS = ROOT / "docs"
PRESETS = EXAMPLES / "posttrain"


def row(page: str, *first: str) -> list[str]:
    """The cells after these in the only row of a page that begins with them."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (DOCS / page).read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    (found,) = (cells[len(first) :] for cells in rows if tuple(cells[: len(first)]) == first)
    return found


def test_a_router_of_balance() -> None:
    """`python -m bench.routers --quarter examples/posttrain/search-48.yaml`, seeds 1 and 2."""
    scenario = quarter(load_posttrain(PRESETS / "search-48.yaml", ["router=least-outstanding", "estimator=blind"]))
    seconds = [[each.last for each in roll_out(set_up_posttrain(scenario.replace(seed=seed)))] for seed in (1, 2)]
    found = np.array(seconds)
    said = [f"{found[:, 0].mean():.1f}", f"{found[:, 1:].mean():.1f}"]
    assert row("balance.md", "`least-outstanding`", "")[:2] == said


def test_an_admission_of_posttrain() -> None:
    changes = ["mode=asynchronous", "steps=14", "trajectories={preset: math, prompts: 16}"]
    got = posttrain(load_posttrain(PRESETS / "math-48.yaml", [*changes, "rollout=[{tp: 2, replicas: 2}]"])).summary
    ages = ", ".join(f"{count:,}" for count in got["staleness"].values())
    mean = sum(int(age) * count for age, count in got["staleness"].items()) / got["samples"]
    figures = f"{got['settled_tokens_per_second']:,.0f}", f"{got['tokens_per_second']:,.0f}", f"{mean:.2f}", ages
    assert tuple(row("posttrain.md", "`{}`")[:4]) == figures


def test_a_plan_by_the_model_of_posttrain() -> None:
    advice = plan(load_posttrain(PRESETS / "search-48.yaml", ["planner=search"]), draws=0)
    said = f"which it takes for {advice.plan.step:.1f} s a step"
    assert (advice.plan.training.gpus, advice.plan.rollout_gpus) == (32, 16)
    assert said in " ".join((DOCS / "posttrain.md").read_text(encoding="utf-8").split())


def compared() -> Sequence[dict[str, Any]]:
    """The scenarios of the page of comparisons."""
    found: list[dict[str, Any]] = json.loads((DOCS / "comparison.json").read_text(encoding="utf-8"))
    return found


def test_a_row_of_comparison() -> None:
    """Co-located steps follow each other, so the first takes as long in a short run. A step of the first scenario."""
    (first, *_) = compared()
    (its,) = (each for each in first["outcomes"] if each["name"] == "verl, co-located")
    if "scenario" not in its:
        pytest.skip("the page was made before rows had their scenarios")
    result = posttrain(posttrain_from_dict({**its["scenario"], "steps": 1}))
    assert result.records[0].synced == pytest.approx(its["figures"]["first_step_seconds"], rel=0.01)
