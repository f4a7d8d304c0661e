"""Where the operator times of post-training come from: both stages ask the same sources."""

from __future__ import annotations

import gzip
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from steelyard.posttrain.planning import Training
from steelyard.posttrain.run import posttrain
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.scenario import load_posttrain
from steelyard.scenario.posttrain import PosttrainScenario
from support.paths import EXAMPLES

PRESET = EXAMPLES / "posttrain" / "search-48.yaml"
SMALL = ["model=qwen3-1.7b", "gpu=h200", "rollout=[{tp: 1, replicas: 2}]", "training={dp: 2}", "steps=1"]
LENGTHS = np.full(64, 2000)


def small(*changes: str) -> PosttrainScenario:
    return load_posttrain(PRESET, [*SMALL, "trajectories={preset: search, prompts: 8, group: 8}", *changes])


@pytest.fixture(scope="module")
def profiled() -> PosttrainSetup:
    return set_up_posttrain(small())


def test_training_is_timed_by_the_profile_of_its_gpu(profiled: PosttrainSetup) -> None:
    analytic = set_up_posttrain(small("cost.source=analytic"))
    assert profiled.training.provenance.get("analytic", 0.0) < 0.05
    assert analytic.training.provenance == {"analytic": pytest.approx(1.0)}
    assert profiled.training.step(LENGTHS).seconds != analytic.training.step(LENGTHS).seconds


def test_plans_are_weighed_by_the_same_times(profiled: PosttrainSetup) -> None:
    training = Training(profiled, 4)
    assert training.seconds(training.written, LENGTHS, "balanced") == profiled.training.step(LENGTHS).seconds


def test_a_profile_of_the_users_own_serves_training_too(profiled: PosttrainSetup, tmp_path: Path) -> None:
    shipped = resources.files("steelyard.cost") / "bundles" / "h200.jsonl.gz"
    file = tmp_path / "own.jsonl"
    file.write_bytes(gzip.decompress(shipped.read_bytes()))
    own = set_up_posttrain(small(f"cost={{source: analytic, profile: {file}}}"))
    assert own.training.step(LENGTHS).seconds == profiled.training.step(LENGTHS).seconds


def test_scenarios_share_training_jobs_while_their_times_are_the_same(profiled: PosttrainSetup, tmp_path: Path) -> None:
    other_ways = small("mode=asynchronous", "seed=7", "trajectories.prompts=16", "training={dp: 4}")
    assert set_up_posttrain(other_ways).jobs is profiled.jobs
    for change in ("cost.source=analytic", "gpu=h100", "model=qwen3-4b"):
        assert set_up_posttrain(small(change)).jobs is not profiled.jobs
    lines = gzip.decompress((resources.files("steelyard.cost") / "bundles" / "h200.jsonl.gz").read_bytes())
    file = tmp_path / "own.jsonl"
    file.write_bytes(lines)
    before = set_up_posttrain(small(f"cost.profile={file}")).jobs
    assert set_up_posttrain(small(f"cost.profile={file}")).jobs is before
    file.write_bytes(lines + b"\n")
    assert set_up_posttrain(small(f"cost.profile={file}")).jobs is not before


def test_a_run_says_where_its_times_come_from() -> None:
    said = posttrain(small()).summary["times_from"]
    assert "profile of NVIDIA H200" in said["rollout"]
    assert sum(said["training"].values()) == pytest.approx(1.0) and said["training"].get("analytic", 0.0) < 0.05
