"""A change of the rollout's layout inside a step: what it gains and takes, and that nothing is lost by it."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest

from steelyard.balance.commands import Cache, Place
from steelyard.balance.log import Journal
from steelyard.cli.control_runs import _check as check_live
from steelyard.engine import Request
from steelyard.errors import UserError
from steelyard.posttrain.attempt import Attempt, StoppedEngine
from steelyard.posttrain.check import check_posttrain
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.roles import merged_blocks
from steelyard.posttrain.run import Driven, drive
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.records import Trajectory, Turn
from steelyard.scenario import posttrain_from_dict
from steelyard.scenario.posttrain import PosttrainScenario
from support.whole_record import WholeRecord

LONG = {"preset": "math", "prompts": 16, "group": 8}
SHORT = {  # all of one length
    **LONG,
    "prompts": 64,
    "work": {"median": 0.01},
    "pace": {},
    "prompt": {"kind": "fixed", "tokens": 100},
    "answer": {"kind": "fixed", "tokens": 200},
}
ROUTERS = ("cost-aware", "least-outstanding", "sticky", "prefix-aware", "c-mlfq", "heddle", "length-predicted")


def scenario(tail: Any = "reconfigure", **more: Any) -> PosttrainScenario:
    written = {
        "model": "qwen3-14b",
        "gpu": "h800",
        "trajectories": LONG,
        "mode": "split",
        "rollout": [{"tp": 2, "replicas": 8}],
        "training": {"tp": 8, "micro_batch_tokens": 49152},
        "router": "least-outstanding",
        "tail": tail,
        "steps": 2,
        "seed": 1,
    }
    return posttrain_from_dict(written | more, "s.yaml")


def ran(tail: Any = "reconfigure", **more: Any) -> Driven:
    return drive(scenario(tail, **more))


def forced(few: float, **more: Any) -> dict[str, Any]:
    return {"kind": "reconfigure", "few": few, **more}


def rollout_seconds(run: Driven) -> list[float]:
    """Of each step."""
    steps = run.loop.record.steps
    begun = [0.0, *(step.synced for step in steps)]
    return [step.begun - step.handing_over - since for step, since in zip(steps, begun, strict=False)]


def figures(run: Driven) -> dict[str, Any]:
    """The summary without what the policy says of itself."""
    return {name: value for name, value in run.summary.items() if name != "tail"}


# What it gains


def test_a_long_tail_is_shortened_and_more_so_by_the_cores_own_decision() -> None:
    plain, late, own = (rollout_seconds(ran(tail)) for tail in ("none", forced(0.03), "reconfigure"))
    for none, some, most in zip(plain, late, own, strict=True):
        assert most < 0.75 * none and some < 0.95 * none and most < 1.02 * some


def test_no_switch_is_worse_than_the_cores_by_much_whatever_its_share() -> None:
    own = sum(rollout_seconds(ran()))
    assert own < 1.05 * min(sum(rollout_seconds(ran(forced(few)))) for few in (0.05, 0.2, 0.5, 1.0))


@pytest.mark.parametrize(
    "idle",
    [
        {"tail": forced(0.0)},
        {"tail": {"kind": "reconfigure", "start": 100_000.0}},
        {"tail": "reconfigure", "trajectories": SHORT, "estimator": "oracle"},
    ],
    ids=["never", "too slow", "no tail"],
)
def test_where_it_does_not_pay_nothing_is_different(idle: Mapping[str, Any]) -> None:
    run, plain = ran(**idle), ran(**{**idle, "tail": "none"})
    assert run.summary["tail"]["reconfigured"] == []
    assert json.dumps(figures(run)) == json.dumps(figures(plain))
    assert run.loop.record.steps == plain.loop.record.steps


def test_lengths_that_are_learnt_end_a_switch_that_did_not_pay() -> None:
    """In the first step nothing is known, so they may be long."""
    (change,) = ran(trajectories=SHORT).summary["tail"]["reconfigured"]
    assert change["at"] == 0.0


def test_a_slow_start_is_only_accepted_for_more_that_is_left() -> None:
    quick, slow = ran(), ran({"kind": "reconfigure", "start": 20.0})
    assert all(each["seconds"] > 20 for each in slow.summary["tail"]["reconfigured"])
    assert sum(rollout_seconds(quick)) < sum(rollout_seconds(slow)) < sum(rollout_seconds(ran("none")))


# What it takes


def test_gpus_have_one_role_and_none_while_engines_change() -> None:
    run = ran(forced(0.2))
    roles, end = run.loop.roles, run.loop.record.steps[-1].synced
    for gpu in range(roles.gpus):
        spans = sorted((each.since, min(each.until, end)) for each in roles.tenures if gpu in each.gpus)
        assert all(before[1] <= after[0] for before, after in pairwise(spans)), "two roles at a time"
    changes = run.summary["tail"]["reconfigured"]
    assert [each["left"] for each in changes] == [25, 25]
    for each in changes:
        between = [
            tenure
            for tenure in roles.tenures
            if tenure.role == "rollout" and tenure.since < each["at"] + each["seconds"] and tenure.until > each["at"]
        ]
        assert not between and 1.0 < each["seconds"] < 1.2
        wide = [tenure for tenure in roles.tenures if tenure.since == pytest.approx(each["at"] + each["seconds"])]
        assert sorted(tenure.gpus for tenure in wide) == [tuple(range(8)), tuple(range(8, 16))]


def test_engines_change_back_before_the_next_weights_are_there() -> None:
    run = ran(forced(0.2))
    narrow = sorted(each.since for each in run.loop.roles.tenures if len(each.gpus) == 2)
    first, back = narrow[:8], narrow[8:16]
    assert first == [0.0] * 8 and len(narrow) in (16, 24)
    step = run.loop.record.steps[0]
    assert all(step.begun < each <= step.synced for each in back)


def test_engines_that_change_back_slowly_are_waited_for() -> None:
    slow, quick = ran(forced(0.2, start=200.0)), ran(forced(0.2))
    begun = slow.loop.record.steps[0].begun
    assert rollout_seconds(slow)[1] > rollout_seconds(quick)[1] + 200.0 - 5.0
    assert min(each.since for each in slow.loop.roles.tenures if each.since > begun) >= begun + 199.0


def test_caches_move_to_the_wide_engines() -> None:
    moves = ran(forced(0.2)).summary["moves"] - ran("none").summary["moves"]
    assert 2 * 25 - 3 <= moves <= 2 * 25  # some have no tokens yet


def brought(*kept: int, by: StoppedEngine, cache: Cache = "keep") -> list[tuple[float, int]]:
    """For caches of so many tokens: after how many seconds each turn is submitted, and the tokens that are there."""
    setup = set_up_posttrain(scenario(forced(0.2)))
    moves = Loop(setup, core_settings(setup).core()).stage.moves
    moves.nodes = {0: 1}
    found = []
    for tokens in kept:
        trajectory = Trajectory("a", "p", "p", (Turn(10),), tokens)
        attempt = Attempt(trajectory, 0, 0.0, context=tokens, kept=tokens, kept_by=by, cache=cache)
        request = attempt.request = Request(0, 5.0, tokens, 10)
        ready, _ = moves.bring(attempt, Place("a", 0), 5.0)
        assert attempt.kept == 0, "only once"
        found.append((ready - 5.0, request.given))
    return found


def test_caches_are_computed_again_where_that_is_faster() -> None:
    near, far = StoppedEngine(1, 1e-6, 1.0), StoppedEngine(2, 1e-6, 1.0)
    (first, there), (second, also) = brought(10_000, 20_000, by=near)
    assert (there, also) == (10_000, 20_000) and near.free == 5.0 + second
    assert first == pytest.approx(0.011) and second == pytest.approx(0.011 + 0.021), "one after the other"
    assert brought(10_000, by=far) == [(0.0, -1)] and far.free == 0.0  # the network is too slow
    assert brought(10, by=near) == [(0.0, -1)]  # a transfer takes longer to begin
    ((fetched, tokens),) = brought(10_000, by=far, cache="offload")
    assert tokens == 10_000 and 0.0 < fetched < 0.1  # from the host's memory


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("mode", ["split", "colocated"])
def test_nothing_is_lost_or_made_twice_with_any_router(router: str, mode: str) -> None:
    more = {"rollout": [{"tp": 2, "replicas": 3}, {"tp": 1, "replicas": 2}], "gpu": "h200"}
    small = scenario(forced(0.4), mode=mode, router=router, trajectories={**LONG, "prompts": 6}, **more)
    check_posttrain(drive(small).result)
    setup, record = set_up_posttrain(small), WholeRecord()
    loop = Loop(setup, core_settings(setup).core(), record=record)
    loop.run()
    assert [each.left for each in record.layouts] == [19, 19]
    assert not loop.driver.core.dropped and not loop.stage.running
    for batch in record.batches:
        assert all(each.generated == each.trajectory.generated for each in batch), "tokens lost or made twice"
        assert len({each.trajectory.id for each in batch}) == 48


def test_two_runs_are_the_same_to_the_byte() -> None:
    logs = []
    for _ in range(2):
        file = io.StringIO()
        drive(scenario(), journal=Journal(file, "test"))
        logs.append(file.getvalue())
    assert logs[0] == logs[1] and '"kind":"Reconfigure"' in logs[0]


# Which engines


def test_engines_are_merged_inside_nodes_and_odd_ones_stay() -> None:
    places = [(0, 1, 2, 3), (4, 5), (6, 7), (8, 9), (10, 11), (12,)]
    assert merged_blocks(places, 8, 8) == [(0, 1, 2)]
    assert merged_blocks(places, 4, 8) == [(1, 2), (3, 4)]
    assert merged_blocks([(0, 1), (2,), (3, 4)], 4, 4) == []


def test_engines_that_find_no_others_go_on_beside_the_wide_ones() -> None:
    run = ran(forced(0.3), rollout=[{"tp": 2, "replicas": 5}])
    (wide,) = {each.gpus for each in run.loop.roles.tenures if len(each.gpus) == 8 and each.role == "rollout"}
    assert wide == tuple(range(8)) and not run.loop.driver.core.dropped
    kept = [each for each in run.loop.roles.tenures if each.gpus == (8, 9)]
    assert len(kept) == 1, "it never stopped"


# What is refused


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"mode": "one-step-off"}, "s.yaml: tail: reconfigure: in mode one-step-off the next batch fills the engines"),
        ({"mode": "asynchronous"}, "s.yaml: tail: reconfigure: in mode asynchronous"),
        ({"planner": "simulated"}, "s.yaml: tail: reconfigure: needs engines that stay; leave planner simulated out"),
        ({"pool": "payoff"}, "s.yaml: tail: reconfigure: needs engines that stay; leave pool payoff out"),
        ({"rollout": [{"tp": 8, "replicas": 2}]}, "s.yaml: tail.tp: no engines of lower degrees have 8 GPUs of a node"),
        ({"rollout": [{"tp": 2, "replicas": 3}]}, "s.yaml: tail.tp: no engines of lower degrees have 8 GPUs of a node"),
        ({"tail": {"kind": "reconfigure", "tp": 3}, "rollout": [{"tp": 1, "replicas": 3}]}, "s.yaml: tail.tp: "),
        ({"tail": {"kind": "reconfigure", "few": 1.5}}, "s.yaml: tail.few: "),
        ({"tail": {"kind": "reconfigure", "start": -1}}, "s.yaml: tail.start: "),
        ({"tail": {"kind": "reconfigure", "fill": 0.5}}, "s.yaml: tail.fill: "),
    ],
)
def test_what_cannot_be_is_refused_with_its_key(more: Mapping[str, Any], message: str) -> None:
    with pytest.raises(UserError) as refused:
        set_up_posttrain(scenario(**more))
    assert str(refused.value).startswith(message)


def test_a_live_run_is_refused() -> None:
    with pytest.raises(UserError, match=r"^s\.yaml: tail: reconfigure cannot be run live yet"):
        check_live(scenario())
