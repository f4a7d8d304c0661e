"""The hybrid pool: its rules, its ledger, and a world of lost, late and repeated messages that must not break it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import inf
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from steelyard.balance.pool import (
    Activate,
    Drain,
    Drained,
    Failed,
    Fetch,
    Fetched,
    Gradient,
    HybridPool,
    Join,
    JoinAccepted,
    Leave,
    MemberState,
    Patience,
    Payoff,
    ProportionalStep,
    Reduce,
    RollBack,
    Serving,
    Split,
    StepBegan,
    Sync,
    Synced,
    Thresholds,
    Tick,
    TimedTraining,
    View,
    contributions,
)
from steelyard.balance.pool.learnt import Learnt
from steelyard.errors import UserError
from support.pool_world import CORE, HYBRID, World, ended, make, random_event


@dataclass
class Scripted:
    """Does what a test wants next."""

    wish: int = 0

    def change(self, view: View) -> int:
        wish, self.wish = self.wish, 0
        return max(-view.lent, min(wish, view.idle))


def joined(pool: HybridPool, script: Scripted) -> int:
    """Lend one replica, the plain way; it is active from step 2 on."""
    pool.decide(StepBegan(0.0, 0, 0))
    script.wish = 1
    (drain,) = pool.decide(ended(0, at=10.0))
    assert isinstance(drain, Drain)
    number, epoch = drain.replica, drain.epoch
    assert pool.decide(Drained(20.0, number, epoch)) == [Join(number, epoch, 0, 0)]
    assert pool.decide(JoinAccepted(21.0, number, epoch)) == []
    assert pool.decide(StepBegan(22.0, 1, 1)) == [Fetch(number, epoch, 1, 1)]
    assert pool.decide(Fetched(25.0, number, epoch, 0, 0)) == []  # of a step that is over
    assert pool.dropped == {"out of order": 1}
    assert pool.decide(Fetched(26.0, number, epoch, 1, 1)) == [Sync(number, epoch, 1, 1)]
    assert pool.decide(Synced(27.0, number, epoch, 0, 0)) == [] and pool.dropped == {"out of order": 2}
    assert pool.members[number].state is MemberState.SYNCING
    assert pool.decide(Synced(30.0, number, epoch, 1, 1)) == []
    assert pool.decide(ended(1, at=31.0)) == []
    assert pool.decide(StepBegan(32.0, 2, 2)) == [Activate(number, epoch, 2)]
    return number


def test_the_way_into_training_and_back() -> None:
    script = Scripted()
    pool = make(script)
    number = joined(pool, script)
    assert pool.split == Split(3, 4.0)
    assert {pool.roles()[gpu] for gpu in HYBRID[number]} == {"training"}
    script.wish = -1
    (leave,) = pool.decide(ended(2, seconds=90.0, at=40.0))
    assert isinstance(leave, Leave) and leave.replica == number
    assert pool.split == Split(2, 4.0)
    assert pool.decide(Serving(47.0, number, leave.epoch - 1)) == []  # an answer to something else
    assert pool.decide(Serving(47.0, number, leave.epoch)) == []
    assert pool.members[number].state is MemberState.ROLLOUT and pool.split == Split(2, 5.0)
    there, back = pool.ledger.entries
    assert (there.to, there.outcome, there.ended, there.realised) == ("training", "done", 32.0, 10.0)
    assert (back.to, back.outcome, back.ended) == ("rollout", "done", 47.0)
    assert pool.ledger.away["training"].mean == pytest.approx(15 + 0.8 * (12 - 15))  # from drained to active
    assert pool.ledger.away["rollout"].mean == pytest.approx(15 + 0.8 * (7 - 15))


def test_training_goes_on_while_a_replica_joins() -> None:
    script = Scripted()
    pool = make(script)
    pool.decide(StepBegan(0.0, 0, 0))
    script.wish = 1
    (drain,) = pool.decide(ended(0))
    assert isinstance(drain, Drain)
    pool.decide(Drained(1.0, drain.replica, drain.epoch))
    for step in range(1, 4):  # the fetch hangs; nobody minds
        pool.decide(StepBegan(float(step), step, step))
        assert pool.decide(Gradient(float(step), 0, 0, step, step, 30)) == []
        reduce = pool.decide(Gradient(float(step), 1, 0, step, step, 10))
        assert reduce == [Reduce(step, step, ((0, 0.75), (1, 0.25)))]
        assert pool.decide(ended(step, at=float(step))) == []


def test_a_replica_that_only_goes_along_counts_for_nothing_and_an_active_one_for_its_tokens() -> None:
    script = Scripted()
    pool = make(script)
    pool.decide(StepBegan(0.0, 0, 0))
    script.wish = 1
    (drain,) = pool.decide(ended(0))
    assert isinstance(drain, Drain)
    number, epoch = drain.replica, drain.epoch
    pool.decide(Drained(1.0, number, epoch))
    pool.decide(JoinAccepted(1.0, number, epoch))
    pool.decide(Fetched(1.0, number, epoch, 0, 0))
    pool.decide(StepBegan(2.0, 1, 1))
    pool.decide(Gradient(3.0, 0, 0, 1, 1, 30))
    assert pool.decide(Gradient(3.0, 1, 0, 1, 1, 10)) == [Reduce(1, 1, ((0, 0.75), (1, 0.25), (number, 0.0)))]
    pool.decide(Synced(4.0, number, epoch, 1, 1))
    pool.decide(StepBegan(5.0, 2, 2))
    pool.decide(Gradient(6.0, number, epoch, 2, 2, 60))
    pool.decide(Gradient(6.0, 0, 0, 2, 2, 30))
    assert pool.decide(Gradient(6.0, 1, 0, 2, 2, 10)) == [Reduce(2, 2, ((0, 0.3), (1, 0.1), (number, 0.6)))]


@pytest.mark.parametrize("fails", [True, False])
def test_a_step_goes_on_without_a_lent_replica_that_drops_out(fails: bool) -> None:
    script = Scripted()
    pool = make(script, patience=Patience(gradient=50.0))
    number = joined(pool, script)
    epoch = pool.members[number].epoch
    pool.decide(Gradient(33.0, 0, 0, 2, 2, 10))
    pool.decide(Gradient(34.0, 1, 0, 2, 2, 10))
    assert pool.wake_at == 84.0
    commands = pool.decide(Failed(40.0, number, epoch, "ECC error") if fails else Tick(84.0))
    assert commands == [RollBack(number, epoch + 1), Reduce(2, 2, ((0, 0.5), (1, 0.5)), redo=(number,))]
    assert pool.decide(Gradient(85.0, number, epoch, 2, 2, 10)) == []
    assert pool.dropped == {"out of order": 2, "late": 1}


def test_a_replica_that_was_rolled_back_is_left_alone_for_a_while_and_told_again_if_it_does_not_answer() -> None:
    class Eager:
        def change(self, view: View) -> int:
            return view.idle

    pool = HybridPool({0: (0,)}, {1: (1,)}, engines=1, rule=Eager(), patience=Patience(draining=10.0, rolled_back=20.0))
    pool.decide(StepBegan(0.0, 0, 0))
    assert pool.decide(ended(0)) == [Drain(1, 1)]
    assert pool.decide(Tick(9.9)) == []
    assert pool.decide(Tick(10.0)) == [RollBack(1, 2)]
    assert pool.decide(Drained(11.0, 1, 1)) == []
    assert pool.ledger.entries[0].outcome == "rolled back" and "draining" in pool.ledger.entries[0].reason
    assert pool.decide(Tick(30.0)) == [RollBack(1, 3)]
    assert pool.decide(Serving(31.0, 1, 2)) == [] and pool.members[1].moving
    assert pool.decide(Serving(31.0, 1, 3)) == [] and not pool.members[1].moving
    for step in range(1, 6):
        pool.decide(StepBegan(float(40 + step), step, step))
        assert bool(pool.decide(ended(step, at=float(40 + step)))) == (step == 5)


# Rules


def view(train: float, rollout: float, *, away: float = 15.0, split: Split | None = None, **more: float) -> View:
    measured = ended(0, train, rollout, **more)
    return View(measured, split or Split(2, 4.0), 2, 1, ProportionalStep(), {"training": away, "rollout": away})


@pytest.mark.parametrize(
    ("train", "pressure", "expected"),
    [(115, 0.8, 1), (114, 0.8, 0), (115, 0.81, 0), (90, 0.99, -1), (91, 0.0, 0)],
)
def test_the_published_thresholds(train: float, pressure: float, expected: int) -> None:
    assert Thresholds().change(view(train, 100.0, pressure=pressure)) == expected
    none_left = replace(view(train, 100.0, pressure=pressure), idle=0, lent=0)
    assert Thresholds().change(none_left) == 0


@pytest.mark.parametrize(
    ("train", "rollout", "split", "expected"),
    [
        (300.0, 80.0, Split(2, 4.0), 2),  # one more: 200 and 107 s; two: 150 and 160
        (300.0, 100.0, Split(2, 4.0), 1),  # two: 150 and 200, no better than one, with 200 and 133
        (300.0, 180.0, Split(2, 4.0), 1),  # two would starve rollout
        (100.0, 100.0, Split(2, 4.0), 0),
        (80.0, 150.0, Split(3, 3.0), -1),  # 120 and 112.5
        (100.0, 150.0, Split(3, 3.0), 0),  # 150: training would be as slow
        (120.0, 100.0, Split(2, 10.0), 1),  # 80 and 111: 7 % less
        (120.0, 104.0, Split(2, 10.0), 0),  # 80 and 116: not worth it
    ],
)
def test_payoff_takes_the_split_that_gains_most(train: float, rollout: float, split: Split, expected: int) -> None:
    assert Payoff().change(view(train, rollout, split=split)) == expected


def test_nothing_is_borrowed_from_a_rollout_under_pressure() -> None:
    assert Payoff().change(view(300.0, 80.0, pressure=0.81)) == 0
    assert Payoff().change(view(80.0, 150.0, split=Split(3, 3.0), pressure=0.81)) == -1


def test_what_is_lost_on_the_way_counts_against_a_move() -> None:
    """Where the stages follow each other, borrowing slows rollout down at once, and speeds training up only later."""
    both = replace(view(120.0, 100.0, split=Split(2, 10.0)), model=ProportionalStep(overlapped=False), idle=1, lent=0)
    gain = 220.0 - (80.0 + 100.0 * 10 / 9)
    lost = 1 - 220.0 / (120.0 + 100.0 * 10 / 9)
    worth = 10 * gain / lost  # seconds on the way that ten steps pay for
    for away, expected in ((0.99 * worth, 1), (1.01 * worth, 0)):
        assert Payoff(horizon=10).change(replace(both, away={"training": away, "rollout": 0.0})) == expected


def test_no_gpu_shortens_the_longest_trajectory() -> None:
    slow = view(50.0, 100.0, split=Split(4, 4.0))
    assert Payoff().change(slow) == -1
    assert Payoff().change(replace(slow, measured=replace(slow.measured, longest=97.0))) == 0


@given(
    *(st.floats(1.0, 1e4) for _ in range(3)),
    st.integers(1, 50),
    st.integers(1, 50),
    st.integers(-60, 60),
)
def test_an_unchanged_split_is_predicted_to_take_what_it_took(
    train: float, rollout: float, longest: float, replicas: int, engines: int, change: int
) -> None:
    measured = ended(0, train, rollout, seconds=max(train, rollout) + 5.0, longest=longest)
    now = Split(replicas, float(engines))
    assert ProportionalStep().seconds(measured, now, now) == pytest.approx(measured.seconds)
    then = ProportionalStep().seconds(measured, now, now.moved(change))
    assert then == inf or then >= 5.0
    assert (then == inf) == (change <= -replicas or change >= engines)


def test_training_takes_what_the_driver_has_timed_and_the_rest_of_a_step_stays() -> None:
    measured = replace(ended(0, 100.0, 80.0, seconds=105.0), train_with=((2, 50.0), (3, 45.0)))
    now = Split(2, 4.0)
    model = TimedTraining(ProportionalStep())
    assert model.seconds(measured, now, now) == pytest.approx(105.0)
    assert model.seconds(measured, now, Split(3, 4.0)) == pytest.approx(95.0)  # 90 s of training, and 5 of neither
    assert model.seconds(measured, now, Split(3, 3.0)) == pytest.approx(80.0 * 4 / 3 + 5.0)
    assert model.seconds(measured, now, Split(4, 4.0)) == pytest.approx(85.0)  # not timed: in proportion
    assert model.seconds(measured, now, Split(3, 0.0)) == inf
    in_turn = TimedTraining(ProportionalStep(overlapped=False))
    both = replace(measured, seconds=185.0)
    assert in_turn.seconds(both, now, Split(3, 4.0)) == pytest.approx(90.0 + 80.0 + 5.0)


def test_costs_follow_measurements_slowly_until_they_clearly_change() -> None:
    cost = Learnt(15.0)
    for value in (30.0, 32.0, 28.0, 31.0, 29.0, 30.0):
        cost.take(value)
    settled = cost.mean
    assert 26 < settled < 31
    cost.take(32.0)
    assert cost.mean == pytest.approx(settled + 0.1 * (32.0 - settled))
    before = cost.mean
    cost.take(300.0)
    assert cost.mean == pytest.approx(before + 0.8 * (300.0 - before))


@given(st.dictionaries(st.integers(0, 20), st.integers(0, 10**7), min_size=1))
def test_weights_add_up_and_every_token_counts_the_same(tokens: dict[int, int]) -> None:
    weights = contributions(tokens)
    assert sum(weights.values()) == pytest.approx(1.0)
    per_token = {weights[replica] / count for replica, count in tokens.items() if count}
    assert not per_token or max(per_token) == pytest.approx(min(per_token))


def test_what_a_pool_cannot_be_made_of() -> None:
    with pytest.raises(UserError, match="GPU 1 is in replica 0 and in replica 2"):
        HybridPool({0: (0, 1)}, {2: (1, 2)})
    with pytest.raises(UserError, match=r"one size, found \[1, 2\] GPUs"):
        HybridPool({0: (0, 1)}, {2: (2,)})
    with pytest.raises(UserError, match="no core"):
        HybridPool({}, {2: (2,)})
    with pytest.raises(UserError, match="both core and hybrid"):
        HybridPool({0: (0, 1)}, {0: (2, 3)})


# A world in which anything can be late, lost or told twice


@given(st.integers(0, 2**32))
@settings(max_examples=30)
def test_whatever_is_late_lost_or_told_twice_no_gpu_has_two_roles_and_nothing_stays_under_way(seed: int) -> None:
    world, dice = World(), Random(seed)
    for _ in range(500):
        random_event(world, dice)
        world.check()
    world.settle()
    again = World.fresh_pool()
    for event, commands in world.log:  # written down and read back, events give the same commands once more
        assert again.decide(read_back(event)) == [read_back(command) for command in commands]


adapter = cache(TypeAdapter[Any])


def read_back(entry: Any) -> Any:
    kind: Any = type(entry)
    return adapter(kind).validate_json(json.dumps(asdict(entry)), strict=True)


def test_the_random_world_gets_everywhere() -> None:
    """Else the test above would say little."""
    world, dice, seen = World(), Random(7), set[MemberState]()
    for _ in range(20_000):
        random_event(world, dice)
        seen |= {member.state for member in world.pool.members.values()}
    assert seen == set(MemberState)
    assert {(entry.to, entry.outcome) for entry in world.pool.ledger.entries} >= {
        (to, outcome) for to in ("training", "rollout") for outcome in ("done", "rolled back")
    }
    assert world.redone and {"late", "repeated", "out of order"} <= set(world.pool.dropped)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=30))
@settings(max_examples=50)
def test_a_world_without_faults_carries_everything_out(wishes: list[int]) -> None:
    world = World()
    for wish in wishes:
        world.begin()
        for number in (*CORE, *HYBRID):
            world.gradient(number, 10 + number)
        for _ in range(2):
            for number in HYBRID:
                world.goes_well(number)
            while world.post:
                world.tell(world.post.pop(0))
        world.now += 1.0
        world.end(wish)
    entries = world.pool.ledger.entries
    assert all(entry.outcome != "rolled back" for entry in entries)
    assert bool(entries) == any(wish > 0 for wish in wishes)
    last = {number: max((e.step for e in entries if e.replica == number), default=0) for number in HYBRID}
    for number, step in last.items():
        assert step >= world.step - 4 or not world.pool.members[number].moving
