"""The post-training examples: each has the GPUs its name says and fits them, and runs a step."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard.model import MoeFfn
from steelyard.posttrain.run import posttrain
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.scenario import load_posttrain
from steelyard.scenario.rollouts import TrajectorySpec
from support.paths import EXAMPLES

PRESETS = sorted((EXAMPLES / "posttrain").glob("*.yaml"))
SMALL = [path for path in PRESETS if "-48" in path.stem]


def test_all_of_libras_evaluation_are_there() -> None:
    names = {path.stem for path in PRESETS}
    assert names >= {f"{task}-48{kind}" for task in ("search", "swe", "math") for kind in ("", "-moe")}
    assert names >= {"search-160", "math-1024"}


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_it_fits_and_every_engine_holds_several_of_the_longest(path: Path) -> None:
    scenario = load_posttrain(path)
    assert str(scenario.gpus) in path.stem.split("-")
    assert isinstance(scenario.trajectories, TrajectorySpec)
    setup = set_up_posttrain(scenario)  # refuses training that does not fit its memory or divide its batch
    longest = scenario.trajectories.budget.context
    for tp, kind in setup.kinds.items():
        assert kind.limits.blocks * kind.limits.block_size > 4 * longest, f"TP{tp} would evict all the time"
    budget = scenario.training.micro_batch_tokens * scenario.training.cp
    assert budget >= longest, "no micro-batch could hold the longest"
    experts = any(isinstance(layer.ffn, MoeFfn) for layer in setup.model.layers)
    assert experts == (scenario.training.ep > 1)


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_a_step_of_a_small_batch_runs(path: Path) -> None:
    loaded = load_posttrain(path, ["steps=1"])
    few = loaded.trajectories.model_copy(update={"prompts": 4})
    summary = posttrain(loaded.model_copy(update={"trajectories": few})).summary
    assert summary["samples"] == 4 * few.group and summary["gpus"] == 48
    assert 0 < summary["gpu_time"]["rollout"]["busy"] < 1
