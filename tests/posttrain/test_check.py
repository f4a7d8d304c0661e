"""`check_posttrain` passes results that are true, and names what is wrong with one that is not."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from steelyard import load_posttrain
from steelyard.cli import app
from steelyard.posttrain.check import check_posttrain
from steelyard.posttrain.result import PosttrainResult
from steelyard.posttrain.run import posttrain
from steelyard.sim.invariants import BrokenResult
from support.paths import EXAMPLES

SCENARIO = EXAMPLES / "posttrain" / "search-48.yaml"
SMALL = ["trajectories={preset: search, prompts: 8, group: 2}", "steps=2"]


@cache
def whole() -> PosttrainResult:
    return posttrain(load_posttrain(SCENARIO, SMALL))


def figure(value: Any, *path: str) -> Callable[[PosttrainResult], PosttrainResult]:
    """Change one figure of the summary."""

    def change(result: PosttrainResult) -> PosttrainResult:
        inner = result.summary
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return result

    return change


def cell(column: str, value: Any) -> Callable[[PosttrainResult], PosttrainResult]:
    """Change the first trajectory."""

    def change(result: PosttrainResult) -> PosttrainResult:
        result.trajectories[column][0] = value
        return result

    return change


def step(**fields: Any) -> Callable[[PosttrainResult], PosttrainResult]:
    """Change the first step."""
    return lambda result: replace(result, records=(replace(result.records[0], **fields), *result.records[1:]))


CHANGES = [
    (figure(1.2, "gpu_time", "rollout", "busy"), "gpu_time.rollout.busy is 1.2; a share is from 0 to 1"),
    (figure(float("inf"), "tokens_per_second"), "summary.tokens_per_second is inf"),
    (figure(3, "samples"), "samples of steps do not add up"),
    (figure(-2.0, "step_seconds", "waiting"), "waiting takes -2.0 seconds"),
    (figure(7.0, "tail_share"), "tail_share is 7.0"),
    (figure(0.0, "trajectory_seconds", "max"), "trajectory_seconds: p99 is"),
    (figure(5, "staleness", "0"), "staleness is of"),
    (cell("begun", np.inf), "a trajectory ended before it began"),
    (cell("generated", 10**9), "engines made"),
    (cell("step", 1), "step 0 has 16 samples, trajectories 15"),
    (cell("given_up", True), "trained on and thrown away"),
    (step(begun=-1.0), "step 0: waited_from is 0.0, above begun"),
    (step(staleness=(9,) * 16), "a sample is 9 versions old, and may be 1"),
    (step(samples=4), "step 0 has 4 samples, trajectories 16"),
]


@pytest.mark.parametrize(("change", "words"), CHANGES, ids=[words for _, words in CHANGES])
def test_what_is_wrong_is_named(change: Callable[[PosttrainResult], PosttrainResult], words: str) -> None:
    check_posttrain(whole())
    with pytest.raises(BrokenResult) as raised:
        check_posttrain(change(deepcopy(whole())))
    assert words in str(raised.value)


def test_the_command_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["posttrain", str(SCENARIO), *(word for each in SMALL for word in ("--set", each)), "--check", "--out"]
    assert CliRunner().invoke(app, [*asked, str(tmp_path / "a")]).exit_code == 0

    def wrong(result: PosttrainResult) -> None:
        raise BrokenResult(["tail_share is 7.0; a share is from 0 to 1"])

    monkeypatch.setattr("steelyard.cli.posttrain.check_posttrain", wrong)
    said = CliRunner().invoke(app, [*asked, str(tmp_path / "b")])
    assert said.exit_code == 1 and "tail_share is 7.0" in said.output
