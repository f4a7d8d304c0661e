"""The elastic pool in the loop: replicas go to training and back whole, at their price, and failures roll back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.balance.pool import Activate, Drain, Fetch, Join, Leave, PoolCommand, Sync, View
from steelyard.posttrain.changes import replica_to_training
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.hybrid import PoolDriver
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.run import drive
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.posttrain.summary import summarise_posttrain
from steelyard.posttrain.training import TrainLayout
from steelyard.scenario import posttrain_from_dict
from support.role_checks import in_two_roles
from support.whole_record import WholeRecord, kept

SCENARIO: dict[str, Any] = {
    "model": "qwen3-14b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 8},
    "mode": "one-step-off",
    "rollout": [{"tp": 2, "replicas": 4}, {"tp": 4, "replicas": 1}],
    "training": {"tp": 4, "dp": 1, "micro_batch_tokens": 12288},
    "engine": {"block_size": 64},
    "router": "sticky",
    "estimator": "blind",
    "pool": "payoff",
    "steps": 6,
}
ONLY = set_up_posttrain(posttrain_from_dict(SCENARIO))


class Told:
    """A rule that does as it is told, step by step."""

    def __init__(self, changes: list[int]) -> None:
        self.changes = changes

    def change(self, view: View) -> int:
        wanted = self.changes.pop(0) if self.changes else 0
        return max(-view.lent, min(wanted, view.idle))


def run(
    changes: list[int], failing: Callable[[PoolCommand], str | None] = lambda _: None, setup: PosttrainSetup = ONLY
) -> tuple[Loop, PoolDriver]:
    loop = Loop(setup, core_settings(setup).core(), record=WholeRecord())
    hybrid = PoolDriver(loop, failing=failing)
    hybrid.pool._rule = Told(changes)
    loop.manager = loop.trainer.gate = hybrid
    loop.run()
    return loop, hybrid


def test_a_lent_replica_trains_from_the_second_step_after_and_comes_back() -> None:
    loop, _ = run([1, -1])
    gpus = [(step.rollout_gpus, step.training_gpus) for step in loop.record.steps]
    assert gpus[:4] == [(12, 4), (12, 4), (8, 4), (8, 8)] and gpus[-1] == (12, 4)  # asked when a whole batch has ended
    there, back = loop.record.reallocations
    assert (there.what, back.what) == ("replica 1 to training", "replica 1 to rollout")
    assert there.outcome == back.outcome == "done" and back.seconds < 30
    first, second = loop.record.steps[2:4]
    assert there.seconds == pytest.approx(second.begun - loop.record.steps[1].synced)  # it counts from a barrier on
    assert second.time.gpus == 2 * first.time.gpus
    assert not in_two_roles(loop.roles.tenures)


def test_rollouts_go_on_while_a_replica_is_on_its_way() -> None:
    lending, plain = run([1])[0], run([])[0]
    ended = {each.trajectory.id for each in kept(lending.record).samples}
    assert ended == {each.trajectory.id for each in kept(plain.record).samples}
    moved = lending.record.steps[1].synced
    joining = replica_to_training(ONLY.model, ONLY.topology, TrainLayout(tp=4, dp=2)).seconds
    assert any(moved < each.ended < moved + joining for each in kept(lending.record).samples)


@pytest.mark.parametrize("kind", [Drain, Join, Sync, Activate, Leave])
def test_whatever_fails_is_rolled_back(kind: type[PoolCommand]) -> None:
    loop, hybrid = run([1, 0, -1], lambda command: "pulled the plug" if isinstance(command, kind) else None)
    assert hybrid.pool.roles() and not in_two_roles(loop.roles.tenures)
    outcomes = {each.outcome for each in loop.record.reallocations}
    assert outcomes <= {"done", "rolled back"} and len(loop.record.steps) == 6
    assert ("rolled back" in outcomes) == (kind is not Activate)  # by then it had arrived, and was thrown out again
    assert sorted(loop.stage.tp.values()) == [2, 2, 2, 2, 4]
    assert loop.record.steps[-1].training_gpus == 4


@given(st.lists(st.integers(-2, 2), max_size=5), st.sets(st.integers(0, 30), max_size=4))
@settings(max_examples=8)
def test_every_reallocation_completes_or_is_rolled_back(changes: list[int], unlucky: set[int]) -> None:
    """Random orders, and random commands that fail: whole replicas, in one role, nobody lost."""
    count = iter(range(1_000_000))
    loop, hybrid = run(changes, lambda _: "unlucky" if next(count) in unlucky else None)
    assert not in_two_roles(loop.roles.tenures)
    assert sum(step.samples for step in loop.record.steps) == 6 * 32
    for step in loop.record.steps:
        assert step.training_gpus % 4 == 0 and step.rollout_gpus + step.training_gpus <= 16
    roles = hybrid.pool.roles()
    engines = {gpu for tenure in loop.roles.engines.values() for gpu in tenure.gpus}
    assert loop.roles.training is not None
    training = set(loop.roles.training.gpus)
    for gpu, role in roles.items():
        assert (gpu in training) == (role == "training")
        assert gpu not in engines or role == "rollout"
    for entry in hybrid.pool.ledger.entries[:-2]:  # the last may be under way when the run ends
        assert entry.outcome in ("done", "rolled back") or entry.step >= 3


def test_fetching_starts_again_when_the_job_has_gone_on() -> None:
    asked: list[PoolCommand] = []

    def slow(command: PoolCommand) -> None:
        asked.append(command)

    run([1], slow)
    kinds = [type(each) for each in asked]
    assert kinds[:2] == [Drain, Join] and kinds[-1] is Activate
    assert kinds.count(Sync) == 1 and all(kind in (Fetch, Sync, Activate) for kind in kinds[2:])


def test_some_engines_always_roll_out() -> None:
    all_alike = {**SCENARIO, "rollout": [{"tp": 2, "replicas": 4}], "steps": 3}
    loop, hybrid = run([9], setup=set_up_posttrain(posttrain_from_dict(all_alike)))
    assert len(hybrid.pool.members) == 1 and loop.record.steps[-1].rollout_gpus == 4


@pytest.mark.parametrize("rule", ["thresholds", "payoff"])
def test_the_summary_says_what_was_moved(rule: str) -> None:
    result = drive(posttrain_from_dict({**SCENARIO, "pool": rule}))
    summary = result.summary
    assert summary["pool"] == rule and summary["reallocations"]
    assert set(summary["reallocations"][0]) >= {"step", "what", "predicted", "realised", "seconds"}
    for shares in summary["gpu_time"].values():
        assert sum(shares.values()) == pytest.approx(1.0) and min(shares.values()) >= 0
    assert summary == summarise_posttrain(result.loop.setup, result.loop, 16)
