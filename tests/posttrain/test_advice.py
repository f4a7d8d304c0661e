"""The recommended plan: predicted on other seeds, pasted into a scenario, exported."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from steelyard import posttrain_from_dict
from steelyard.cli import app
from steelyard.errors import UserError
from steelyard.posttrain import Advice, PosttrainResult, plan, posttrain
from steelyard.posttrain.advice import Prediction
from steelyard.posttrain.part import scaled
from steelyard.report.advice import advice_data, plan_yaml

SMALL: dict[str, Any] = {
    "model": "qwen3-14b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 8, "group": 4},
    "rollout": [{"tp": 2, "replicas": 4}],
    "training": {"tp": 4, "dp": 2, "micro_batch_tokens": 16384},
    "planner": "search",
    "steps": 2,
}


@cache
def advice() -> Advice:
    return plan(posttrain_from_dict(SMALL))


def test_an_interval_has_as_many_further_draws_as_it_says() -> None:
    """Normal draws: of 4,000 intervals by 4 values each, nine of ten have the fifth."""
    from random import Random

    r, hits = Random(3), 0
    for _ in range(4000):
        *known, further = (r.gauss(100.0, 5.0) for _ in range(5))
        low, high = Prediction(tuple(known)).interval
        hits += low <= further <= high
    assert hits / 4000 == pytest.approx(0.9, abs=0.02)


def test_a_plan_is_predicted_on_other_seeds() -> None:
    found = advice().predicted
    assert found is not None and len(found.draws) == 4 and len(set(found.draws)) > 1
    assert found.interval[0] < found.mean == fmean(found.draws) < found.interval[1]
    assert plan(posttrain_from_dict(SMALL), draws=0).predicted is None
    other = plan(posttrain_from_dict({**SMALL, "seed": 1})).predicted
    assert other is not None and other.draws[:3] == found.draws[1:], "the seeds after the scenario's own"


def test_the_yaml_makes_the_scenario_of_the_plan() -> None:
    pasted = yaml.safe_load(plan_yaml(advice()))
    again = posttrain_from_dict({**SMALL, **pasted, "planner": "given"})
    assert (again.rollout, again.training) == (advice().scenario.rollout, advice().scenario.training)
    assert advice_data(advice())["yaml"] == plan_yaml(advice())


def test_the_plan_can_be_run() -> None:
    result = posttrain(advice().scenario)
    assert isinstance(result, PosttrainResult) and len(result.steps["seconds"]) == SMALL["steps"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "training": {**SMALL["training"], "zero": 1}}))
    return path


@pytest.mark.parametrize("target", ["verl", "slime", "vllm", "sglang"])
def test_the_plan_is_exported(file: Path, tmp_path: Path, target: str) -> None:
    done = CliRunner().invoke(app, ["plan", str(file), "--to", target, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, (done.output, done.exception)
    text = "".join(path.read_text() for path in sorted((tmp_path / "out").iterdir()))
    engines = advice().scenario.rollout[0]
    said = {
        "verl": f"tensor_model_parallel_size={engines.tp}",
        "slime": f"--rollout-num-gpus-per-engine {engines.tp}",
        "vllm": f"--tensor-parallel-size {engines.tp}",
        "sglang": f"--tp-size {engines.tp}",
    }
    assert said[target] in text, text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--to", "kserve"], "not a target for a plan"),
        (["--out", "x"], "also give --to"),
        (["--to", "verl", "--json"], "also give --out"),
        (["--to", "verl", "--steps-per-day", "9"], "leave out --steps-per-day"),
    ],
)
def test_options_that_do_not_go_together_are_refused(file: Path, options: list[str], words: str) -> None:
    done = CliRunner().invoke(app, ["plan", str(file), *options])
    assert isinstance(done.exception, UserError) and words in str(done.exception)


def test_a_scale_that_does_not_work_is_told_the_smallest_that_does() -> None:
    scenario = posttrain_from_dict({**SMALL, "rollout": [{"tp": 2, "replicas": 4}], "training": {"tp": 4, "dp": 2}})
    with pytest.raises(UserError, match=r"the smallest workable scale is 1/2 \(0.5\)"):
        scaled(scenario, 0.25)
    assert scaled(scenario, 0.5).training.dp == 1
    odd = posttrain_from_dict({**SMALL, "rollout": [{"tp": 2, "replicas": 3}]})
    with pytest.raises(UserError, match="no scale but 1"):
        scaled(odd, 0.5)
