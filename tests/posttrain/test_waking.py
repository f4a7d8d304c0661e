"""Engines on the GPUs of training that generate while it waits."""

from __future__ import annotations

from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.posttrain.check import check_posttrain
from steelyard.posttrain.run import drive, posttrain
from steelyard.scenario import posttrain_from_dict
from steelyard.scenario.posttrain import PosttrainScenario


def scenario(**more: Any) -> PosttrainScenario:
    """Rollout on two GPUs is the slower stage; training on two waits for it."""
    written: dict[str, Any] = {
        "model": "qwen2.5-0.5b",
        "gpu": "a800",
        "trajectories": {"preset": "math", "prompts": 8, "group": 4},
        "mode": "asynchronous",
        "rollout": [{"tp": 1, "replicas": 2}],
        "training": {"dp": 2, "micro_batch_tokens": 49152, "generates": True},
        "engine": {"max_num_seqs": 8, "block_size": 64},
        "router": "sticky",
        "estimator": "blind",
        "admission": {"late": "train"},
        "steps": 6,
    }
    return posttrain_from_dict({**written, **more})


def test_gpus_roll_out_while_they_wait_and_never_while_they_train() -> None:
    result = posttrain(scenario())
    check_posttrain(result)
    lent = [each for each in result.held if each.role == "rollout" and each.since >= 0 and len(each.busy_from)]
    assert len(lent) > 2, "two engines are there from the beginning, others wake"
    for step in result.records:
        for begun, trained in step.spans:
            awake = [
                each for each in result.held if each.role == "rollout" and each.since < trained and each.until > begun
            ]
            assert sum(each.gpus for each in awake) == 2
    assert all(step.handing_over > 0 for step in result.records if step.waited_from < step.begun - 10)


def test_where_training_hardly_waits_no_engine_wakes() -> None:
    few = {"trajectories": {"preset": "search", "prompts": 64, "group": 8}, "rollout": [{"tp": 1, "replicas": 6}]}
    training = {"dp": 1, "micro_batch_tokens": 49152}
    same = [drive(scenario(**few, training={**training, "generates": each})) for each in (True, False)]
    woken, never = ({each.since for each in run.loop.roles.tenures if each.role == "rollout"} for run in same)
    steps = [step.synced for step in same[0].loop.record.steps]
    assert never == {0.0} and not [since for since in woken if since > steps[2]]


def test_a_second_run_is_the_same() -> None:
    assert posttrain(scenario()).summary == posttrain(scenario()).summary


@pytest.mark.parametrize("mode", ["split", "colocated"])
def test_modes_in_which_stages_take_turns_have_nothing_to_lend(mode: str) -> None:
    with pytest.raises(UserError, match=rf"training.generates: in mode {mode} it never waits"):
        scenario(mode=mode, admission={})
