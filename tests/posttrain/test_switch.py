"""Ways to change engines when the plan changes: what starts when, what serves meanwhile, and what that takes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from steelyard.balance.plan import Bucket, Plan
from steelyard.errors import UserError
from steelyard.posttrain.planning import Training
from steelyard.posttrain.roles import Gpus
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.posttrain.switch_plan import RolesNow, SwitchPlan, started_ahead, switch_plan
from steelyard.posttrain.sync import Startup
from steelyard.scenario import posttrain_from_dict
from steelyard.scenario.posttrain import SwitchName

SCENARIO: dict[str, Any] = {
    "model": "qwen3-14b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 8},
    "mode": "one-step-off",
    "rollout": [{"tp": 4, "replicas": 2}],
    "training": {"tp": 4, "dp": 2, "micro_batch_tokens": 16384},
    "planner": "libra",
}
START = Startup().engine


@cache
def world() -> tuple[PosttrainSetup, Training]:
    setup = set_up_posttrain(posttrain_from_dict(SCENARIO))
    return setup, Training(setup, 16)


def plan(gpus: int, *degrees: int) -> Plan:
    _, training = world()
    option = training.written if gpus == 8 else next(each for each in training.layouts if each.gpus == gpus)
    return Plan(option, tuple(Bucket(tp, degrees.count(tp), 0) for tp in sorted(set(degrees))), 0.0, 0.0, 0.0)


NOW = plan(8, 4, 4)
ROLES = RolesNow(16, 8, {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}, tuple(range(8, 16)), set())


def setup_for(way: SwitchName, **more: Any) -> PosttrainSetup:
    setup, _ = world()
    return replace(setup, scenario=setup.scenario.replace(switch=way, **more))


def switched(way: SwitchName, then: Plan, roles: RolesNow = ROLES, now: Plan = NOW) -> SwitchPlan:
    return switch_plan(setup_for(way), world()[1], now, then, roles)


def test_by_difference_only_what_differs_changes() -> None:
    then = plan(8, 2, 2, 4)
    change = switched("difference", then)
    assert change.stay == {0} and set(change.new) == {(4, 5), (6, 7)}
    assert not change.stops and change.waits and change.ready == change.up > START
    assert change.laid == 0.0 and change.seconds == change.up


def test_a_restart_starts_all_engines_anew_though_they_sleep() -> None:
    asleep = replace(ROLES, known={(4, 5), (6, 7), (0, 1, 2, 3)})
    then = plan(8, 2, 2, 4)
    assert switched("difference", then, asleep).up < 5.0
    change = switched("restart", then, asleep)
    assert not change.stay and len(change.new) == 3 and min(change.new.values()) > START


def test_blue_green_lets_old_engines_serve_until_those_beside_them_are_up() -> None:
    """Training shrinks by half: a wide engine starts on its GPUs, and one of the old ones makes place after that."""
    then = plan(4, 2, 2, 4, 4)
    plain, change = switched("difference", then), switched("blue-green", then)
    assert change.stay == plain.stay == {0, 1} and change.new == plain.new  # nothing is in the way
    then = plan(4, 2, 2, 2, 2, 2, 2)
    change = switched("blue-green", then)
    beside = {gpus: up for gpus, up in change.new.items() if min(gpus) >= 8}
    others = {gpus: up for gpus, up in change.new.items() if gpus not in beside}
    assert beside and others and not change.stay
    over = max(beside.values())
    assert change.stops == {0: over, 1: over} and min(others.values()) > over + START
    assert change.ready == change.up


def test_engines_stop_at_once_where_training_takes_their_gpus() -> None:
    ways: tuple[SwitchName, ...] = ("blue-green", "swap")
    for way in ways:
        change = switched(way, plan(10, 2, 2, 2))
        taken = {number for number, gpus in ROLES.engines.items() if set(gpus) & set(change.job)}
        assert taken and not taken & set(change.stops)


def test_engines_are_swapped_one_after_the_other() -> None:
    then = plan(8, 2, 2, 2, 2)
    change = switched("swap", then)
    ups = sorted(change.new.values())
    assert all(second - first > START for first, second in pairwise([0.0, *ups]))
    assert len(change.stops) == 1 and next(iter(change.stops.values())) in ups, "one serves meanwhile"
    assert not change.waits and change.ready == 0.0 and change.seconds == ups[-1]


def test_without_an_engine_that_serves_the_next_batch_waits_for_the_first_one() -> None:
    change = switched("swap", plan(8, 8))
    assert not change.stay and change.ready == change.up > START


def ahead(then: Plan, roles: RolesNow = ROLES, **engine: Any) -> tuple[set[Gpus], float]:
    setup = setup_for("pre-warm", engine=engine)
    return started_ahead(setup, world()[1], NOW, then, roles)


def test_engines_start_ahead_where_memory_is_spare() -> None:
    """8 of 80 GB are: an eighth of 30 GB of weights fits beside an engine, half of them does not."""
    assert ahead(plan(8, 8)) == ({tuple(range(8))}, START)
    assert ahead(plan(8, 2, 2, 4)) == (set(), 0.0)
    roomy, seconds = ahead(plan(8, 2, 2, 4), gpu_memory_utilization=0.7)
    assert roomy == {(4, 5), (6, 7)} and seconds == START
    assert all(max(gpus) < 8 for gpus in ahead(plan(4, 8, 4), gpu_memory_utilization=0.7)[0])
    sleeping = replace(ROLES, known={tuple(range(8))})
    assert ahead(plan(8, 8), sleeping) == (set(), 0.0), "it only has to wake"


@pytest.mark.parametrize("way", ["blue-green", "pre-warm"])
def test_colocated_stages_have_nothing_beside_them(way: str) -> None:
    with pytest.raises(UserError, match=r"switch: .*colocated stages share all GPUs"):
        posttrain_from_dict({**SCENARIO, "mode": "colocated", "switch": way})


def test_unknown_ways_are_named() -> None:
    with pytest.raises(UserError, match="switch"):
        posttrain_from_dict({**SCENARIO, "switch": "blue"})
