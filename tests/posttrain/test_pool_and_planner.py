"""A planner and a hybrid pool at once: a change of plan takes over what the pool has lent, and another pool follows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.balance.log import Journal
from steelyard.balance.plan import Bucket, Plan, PlannerState
from steelyard.balance.plan.planning import Planning
from steelyard.balance.plan.questions import PlanAnswers
from steelyard.balance.pool import (
    Drained,
    HybridPool,
    PoolDissolved,
    PoolFormed,
    PoolRules,
    StepBegan,
    StepEnded,
    Thresholds,
    View,
)
from steelyard.posttrain.check import check_posttrain
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.plan_simulator import PlanSimulator
from steelyard.posttrain.replan import Replanner
from steelyard.posttrain.replay import replay_log
from steelyard.posttrain.run import drive
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.scenario import posttrain_from_dict
from steelyard.scenario.posttrain import SwitchName
from support.role_checks import in_two_roles
from support.whole_record import WholeRecord, kept

SCENARIO: dict[str, Any] = {
    "model": "qwen3-14b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 8},
    "mode": "one-step-off",
    "rollout": [{"tp": 2, "replicas": 4}, {"tp": 4, "replicas": 1}],
    "training": {"tp": 4, "dp": 1, "micro_batch_tokens": 16384},
    "engine": {"block_size": 64},
    "router": "sticky",
    "estimator": "blind",
    "pool": "thresholds",
    "steps": 6,
}


@cache
def setup() -> PosttrainSetup:
    return set_up_posttrain(posttrain_from_dict(SCENARIO), any_degree=True)


@dataclass
class Told:
    """A planner that does as it is told: a plan after some steps."""

    plans: dict[int, Plan]

    def plan(self, state: PlannerState) -> Plan | None:
        return self.plans.get(state.step)


def run(plans: dict[int, Plan], lends: dict[int, int], way: str = "difference") -> Loop:
    """A run with these changes of plan after steps, and these replicas lent (or given back) by the pool."""
    here = replace(setup(), scenario=setup().scenario.replace(switch=way, planner="libra"))
    simulator = PlanSimulator(here)
    core = core_settings(here).core()
    answers = PlanAnswers(simulator.world.options)
    core.planning = Planning(
        replace(simulator.world, train=answers.train), Told(plans), answers, simulator.written, forms_pool=True
    )

    def change(_: Thresholds, view: View) -> int:
        return max(-view.lent, min(lends.get(view.measured.step, 0), view.idle))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Thresholds, "change", change)
        loop = Loop(here, core, record=WholeRecord())
        loop.manager = Replanner(loop, simulator)
        loop.run()
    return loop


def a_plan(gpus: int, *degrees: int) -> Plan:
    option = next(each for each in PlanSimulator(setup()).world.options if each.gpus == gpus)
    buckets = tuple(Bucket(tp, degrees.count(tp), 0) for tp in sorted(set(degrees)))
    return Plan(option, buckets, 1.0, 1.0, 1.0)


def test_what_is_lent_goes_into_the_next_plan_and_another_pool_lends_again() -> None:
    loop = run({3: a_plan(8, 2, 2, 2, 2)}, {1: 1, 5: 1})
    what = [(each.what.split(" ")[-1], each.outcome) for each in loop.record.reallocations]
    first, second = loop.record.reallocations[:2]
    assert what[0] == ("training", "done") and "->" in second.what
    assert second.what.startswith("8 train"), "the planner knows of the lent replica"
    assert [each.training_gpus for each in loop.record.steps] == [4, 4, 4, 8, 8, 8]
    assert not in_two_roles(loop.roles.tenures) and first.step < second.step


def test_replicas_on_their_way_are_taken_over_too() -> None:
    """Lent after the step before the change: its engines have stopped, and it does not train yet."""
    loop = run({2: a_plan(4, 1, 1, 1, 1, 2, 2, 2, 2)}, {1: 1})
    moved, changed = loop.record.reallocations
    assert moved.outcome == "rolled back" and "8 roll out" in changed.what.split(" -> ")[0]
    assert sorted(loop.stage.tp.values()) == [1, 1, 1, 1, 2, 2, 2, 2]
    assert not in_two_roles(loop.roles.tenures) and sum(step.samples for step in loop.record.steps) == 6 * 32


@given(
    st.dictionaries(st.integers(0, 5), st.integers(-2, 2), max_size=5),
    st.sets(st.integers(0, 4), max_size=3),
    st.sampled_from(get_args(SwitchName)),
    st.data(),
)
@settings(max_examples=6)
def test_no_gpu_is_in_two_roles_and_nobody_is_lost(
    lends: dict[int, int], changes: set[int], way: str, data: st.DataObject
) -> None:
    choices = [a_plan(4, 4, 4, 4), a_plan(4, 2, 2, 2, 2, 4), a_plan(8, 1, 1, 2, 4), a_plan(8, 8)]
    loop = run({step: data.draw(st.sampled_from(choices)) for step in sorted(changes)}, lends, way)
    assert not in_two_roles(loop.roles.tenures)
    assert sum(step.samples for step in loop.record.steps) == 6 * 32
    ended = [each.trajectory.id for each in kept(loop.record).samples]
    assert len(set(ended)) == len(ended) == 6 * 32 + len(loop.stage.ended) and not set(ended) & set(loop.stage.running)
    for step in loop.record.steps:
        assert step.rollout_gpus + step.training_gpus <= 16
    for tenure in loop.roles.tenures:
        assert tenure.since <= tenure.until
    assert loop.roles.training is not None
    held = [gpu for tenure in loop.roles.engines.values() for gpu in tenure.gpus]
    assert len(held) == len(set(held)) and not set(held) & set(loop.roles.training.gpus)


def test_a_log_of_both_gives_the_same_commands_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Thresholds, "change", lambda self, view: 1 if view.idle else -view.lent)
    path = tmp_path / "events.jsonl"
    scenario = posttrain_from_dict({**SCENARIO, "planner": "one-at-a-time", "rollout": [{"tp": 2, "replicas": 6}]})
    with path.open("w") as file:
        driven = drive(scenario, journal=Journal(file))
    check_posttrain(driven.result)
    found = replay_log(path)
    assert found.difference is None and not found.cut and found.events
    text = path.read_text()
    assert text.count('"PoolFormed"') > 1 and '"PoolDissolved"' in text and '"FormPool"' in text
    assert driven.summary["reallocations"]


def test_answers_to_a_pool_that_has_ended_change_nothing() -> None:
    """Its epochs go on in the next one, so that neither takes the other's answers for its own."""
    formed = PoolFormed(0.0, ((0, (0, 1)),), ((1, (2, 3)),), 2)
    rules = PoolRules("thresholds", overlapped=True)
    core = core_settings(setup()).core()
    core.apply(formed)
    core.apply(StepBegan(1.0, 0, 0))
    (drain, *_) = core.apply(StepEnded(2.0, 0, 9.0, 1.0, 10.0, 0.1))
    assert type(drain).__name__ == "Drain" and core.pool is not None
    (entry,) = core.pool.ledger.entries
    assert core.apply(PoolDissolved(3.0)) == [] and core.pool is None
    assert (entry.outcome, entry.reason) == ("rolled back", "the plan changed")
    assert core.apply(Drained(4.0, 1, 1)) == [] and core.dropped["unknown pool"] == 1
    core.apply(formed)
    pool = core.pool
    assert isinstance(pool, HybridPool) and pool.epoch == 1 and rules.form(formed).epoch == 0
    core.apply(StepBegan(5.0, 1, 1))
    core.apply(StepEnded(6.0, 1, 9.0, 1.0, 10.0, 0.1))
    assert core.apply(Drained(7.0, 1, 1)) == [] and pool.dropped["late"] == 1
    assert core.apply(PoolDissolved(8.0)) == [] and core.apply(PoolDissolved(9.0)) == []


def test_the_planner_is_told_what_the_pool_has_lent() -> None:
    states: list[PlannerState] = []

    class Spy(Told):
        def plan(self, state: PlannerState) -> Plan | None:
            states.append(state)
            return None

    here = replace(setup(), scenario=setup().scenario.replace(planner="libra"))
    simulator, core = PlanSimulator(here), core_settings(here).core()
    answers = PlanAnswers(simulator.world.options)
    world = replace(simulator.world, train=answers.train)
    core.planning = Planning(world, Spy({}), answers, simulator.written, forms_pool=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Thresholds, "change", lambda self, view: 1 if view.measured.step == 1 else 0)
        loop = Loop(here, core)
        loop.manager = Replanner(loop, simulator)
        loop.run()
    plans = [state.plan for state in states if state.plan is not None]
    assert plans[0].training.gpus == 4 and plans[0].rollout_gpus == 12
    assert plans[-1].training.gpus == 8 and plans[-1].rollout_gpus == 8
    assert plans[-1].training.dp == 2 and plans[-1].train > 0
