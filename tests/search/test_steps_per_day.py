"""How many GPUs post-training needs for so many steps a day."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from steelyard.cli import app
from steelyard.report.steps_per_day import steps_lines
from steelyard.scenario import posttrain_from_dict
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.search.steps_per_day import gpus_for_steps

WRITTEN: dict[str, Any] = {
    "name": "tiny",
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 16, "group": 8},
    "mode": "one-step-off",
    "planner": "search",
    "rollout": [{"tp": 1, "replicas": 4}],
    "training": {"dp": 4},
    "steps": 3,
}


def tiny(**more: Any) -> PosttrainScenario:
    return posttrain_from_dict({**WRITTEN, **more})


@pytest.mark.parametrize("mode", ["one-step-off", "split", "colocated"])
def test_the_smallest_that_reaches_it(mode: str) -> None:
    scenario = tiny(mode=mode, rollout=[{"tp": 1, "replicas": 4}])
    little = gpus_for_steps(scenario, 1.0).found
    assert little is not None and little.gpus <= 2, "whatever runs at all is enough"
    found = gpus_for_steps(scenario, 1.05 * little.steps)
    assert found.found is not None and found.less is not None
    assert found.found.gpus > found.less.gpus >= little.gpus
    assert found.found.steps >= 1.05 * little.steps > found.less.steps
    assert "GPUs for" in steps_lines(found)[0] and steps_lines(found)[1].startswith("one size less, ")


def test_more_than_any_number_makes() -> None:
    found = gpus_for_steps(tiny(), 1e6)
    assert found.found is None and found.less is not None and found.less.steps < 1e6
    assert steps_lines(found)[0].startswith("no number of GPUs makes 1,000,000 steps a day: ")


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(json.dumps(WRITTEN))
    told = CliRunner().invoke(app, ["plan", str(file), "--steps-per-day", "100"])
    assert told.exit_code == 0 and "for 100 steps a day" in told.output.splitlines()[0]
    shown = CliRunner().invoke(app, ["plan", str(file), "--steps-per-day", "100", "--json"])
    assert json.loads(shown.output)["found"]["steps_per_day"] >= 100
