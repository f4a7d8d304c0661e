"""Merging replicas for the last trajectories: what is predicted, when it pays, and that nobody is placed meanwhile."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.balance.commands import Place
from steelyard.balance.estimate import Left
from steelyard.balance.events import Begun, Ended, ReplicaUp
from steelyard.balance.rollouts import Rollouts
from steelyard.balance.route import BucketSpeed
from steelyard.balance.tail import Merge, Reconfigure, Reconfiguring, RoundBegan, Tail, TailCommand, WideReplicas
from steelyard.balance.tail.payback import Part, _survival, pays
from steelyard.balance.tail.progress import TurnProgress
from steelyard.records import Turn
from support.cluster import WIDE, Cluster
from support.cluster import settings as core_settings

NARROW = BucketSpeed(((1, 0.010), (64, 0.012)), 1e-4, 1e-6)
FASTER = BucketSpeed(((1, 0.004), (64, 0.030)), 5e-5, 1e-6)  # for few
NOW, THEN = [Part(NARROW, 8, 1.0)], Part(FASTER, 2, 1.0)

lengths = st.lists(st.floats(1.0, 5_000.0), min_size=1, max_size=8).map(sorted)


@given(st.lists(lengths, min_size=1, max_size=4))
def test_how_many_run_and_whether_any_does_are_those_of_all_outcomes(left: list[list[float]]) -> None:
    width = max(each[-1] for each in left) / 64
    found = _survival(left, width)
    for number in (0, 1, 20, 63):
        tokens = (number + 0.5) * width
        runs = [sum(length > tokens for length in each) / len(each) for each in left]
        outcomes = product((False, True), repeat=len(left))
        chances = {
            outcome: prod(share if on else 1 - share for on, share in zip(outcome, runs, strict=True))
            for outcome in outcomes
        }
        running, any_left = found[number]
        assert running == pytest.approx(sum(sum(outcome) * chance for outcome, chance in chances.items()))
        assert any_left == pytest.approx(sum(chance for outcome, chance in chances.items() if any(outcome)))


def test_a_long_tail_pays_and_a_short_one_does_not() -> None:
    few = [[2_000.0], [9_000.0]]
    assert pays(few, 1_000, NOW, THEN, 5.0)  # 54 seconds saved
    assert not pays(few, 1_000, NOW, THEN, 60.0)
    assert not pays([[100.0], [300.0]], 1_000, NOW, THEN, 5.0)
    assert not pays(few, 1_000, NOW, Part(NARROW, 2, 1.0), 0.0)  # no faster


def test_a_change_waits_while_many_run_even_if_it_would_pay_already() -> None:
    """Two wide replicas are slower for 256, and a few of those have very much left."""
    many = [[float(800 + index)] for index in range(252)] + [[20_000.0]] * 4
    assert not pays(many, 1_000, NOW, THEN, 5.0)
    assert pays([[each[0] - 1_052] for each in many[-4:]], 2_052, NOW, THEN, 5.0)


@given(st.lists(lengths, min_size=1, max_size=12), st.floats(0.0, 30.0), st.floats(0.0, 30.0))
@settings(max_examples=200)
def test_what_pays_would_pay_for_less(left: list[list[float]], cost: float, less: float) -> None:
    if pays(left, 500, NOW, THEN, cost):
        assert pays(left, 500, NOW, THEN, min(cost, less))
        assert sum(max(each) for each in left) * 0.012 * 0.95 > cost, "more than could ever be saved"


def put(rollouts: Rollouts, progress: TurnProgress, name: str, replica: int, at: float) -> None:
    trajectory = rollouts.apply(Begun(at, name, name, 10))
    assert trajectory is not None
    rollouts.place(trajectory, replica, "keep")
    progress.follow(rollouts.replicas[replica], NARROW, at)


def test_a_running_turn_is_followed_by_time_and_speed() -> None:
    rollouts, progress = Rollouts(), TurnProgress()
    for number in range(2):
        rollouts.apply(ReplicaUp(0.0, number, 2, 8, 1000))
    put(rollouts, progress, "a", 0, 0.0)
    alone, both = NARROW.step(1, 10), NARROW.step(2, 20)
    assert progress.of_turn(rollouts.running["a"], 3.0) == pytest.approx(3.0 / alone)
    put(rollouts, progress, "b", 0, 3.0)  # from here on both are slower
    assert progress.of_turn(rollouts.running["a"], 5.0) == pytest.approx(3.0 / alone + 2.0 / both)
    assert progress.of_turn(rollouts.running["b"], 5.0) == pytest.approx(2.0 / both)
    rollouts.apply(Ended(5.0, "a", rollouts.running["a"].epoch, Turn(400)))
    assert progress.ended("a") == 0 and progress.ended("a") is None
    progress.follow(rollouts.replicas[0], NARROW, 5.0)
    assert progress.of_turn(rollouts.running["b"], 6.0) == pytest.approx(2.0 / both + 1.0 / alone)


def test_a_turn_that_is_placed_elsewhere_begins_anew() -> None:
    rollouts, progress = Rollouts(), TurnProgress()
    for number in range(2):
        rollouts.apply(ReplicaUp(0.0, number, 2, 8, 1000))
    put(rollouts, progress, "a", 0, 0.0)
    rollouts.place(rollouts.running["a"], 1, "drop")
    assert progress.of_turn(rollouts.running["a"], 4.0) == 0.0  # it was not seen there yet
    progress.follow(rollouts.replicas[1], NARROW, 4.0)
    assert progress.of_turn(rollouts.running["a"], 5.0) == pytest.approx(1.0 / NARROW.step(1, 10))


# The policy

TP8 = WideReplicas(8, (Merge(4, (0, 1, 2, 3)),), seats=8, tokens=100_000, seconds=1.0, move=1e-6, longest=40_000)
POLICY = Reconfiguring(wide=TP8, speeds=((2, NARROW), (8, FASTER)))


def round_of(policy: Reconfiguring, samples: int, left: float) -> list[list[TailCommand]]:
    """What a policy says at each end of a round whose samples are predicted to have as many tokens left."""
    rollouts, said = Rollouts(), []
    for number in range(4):
        rollouts.apply(ReplicaUp(0.0, number, 2, 8, 10_000))
    tail = Tail(policy, rollouts)
    tail.decide(RoundBegan(0.0, 0, samples, 1))
    for index in range(samples):
        begun = Begun(0.0, f"t{index}", "p", 10, group=f"g{index}")
        trajectory = rollouts.apply(begun)
        assert trajectory is not None
        trajectory.left = Left(left, left)
        rollouts.place(trajectory, index % 4)
        said.append(tail.decide(begun))
    for index in range(samples - 1):
        ended = Ended(0.001 * index, f"t{index}", 1, Turn(5))
        rollouts.apply(ended)
        said.append(tail.decide(ended))
    return said


def changes(said: list[list[TailCommand]]) -> list[int]:
    """The places at which it said to reconfigure."""
    return [place for place, commands in enumerate(said) if any(isinstance(each, Reconfigure) for each in commands)]


def test_replicas_are_merged_once_and_only_when_wide_ones_have_seats_for_all() -> None:
    (place,) = changes(round_of(POLICY, 20, 30_000.0))
    assert 20 - (place - 19) <= 8
    assert round_of(POLICY, 20, 30_000.0)[place][0] == Reconfigure(TP8.merges)


def test_nothing_is_merged_for_those_that_are_about_to_end() -> None:
    assert not changes(round_of(POLICY, 20, 40.0))
    assert not changes(round_of(replace(POLICY, few=0.0), 20, 30_000.0))
    assert not changes(round_of(replace(POLICY, wide=None), 20, 30_000.0))
    assert not changes(round_of(replace(POLICY, wide=replace(TP8, seconds=1e4)), 20, 30_000.0))
    assert not changes(round_of(replace(POLICY, wide=replace(TP8, longest=60)), 20, 30_000.0)), "by the budget"


def test_a_given_share_is_what_counts() -> None:
    (place,) = changes(round_of(replace(POLICY, few=0.2), 20, 40.0))
    assert 20 - (place - 19) == 4
    (later,) = changes(round_of(replace(POLICY, few=0.2, wide=replace(TP8, tokens=30)), 20, 40.0))
    assert 20 - (later - 19) == 3, "there was no room for four contexts of 10 tokens"


@pytest.mark.parametrize("few", [0.7, None])
def test_nothing_is_placed_until_all_wide_replicas_are_up(few: float | None) -> None:
    wide = replace(WIDE, merges=(Merge(3, (0,)), Merge(5, (1,))))
    merged = 0
    for seed in range(20):
        made = core_settings(Reconfiguring(few=few, wide=wide), staleness=0)
        cluster = Cluster(made.core(), Random(seed), losses=False)
        cluster.begin()
        while cluster.version < made.rounds.steps and cluster.happen():
            pass
        assert cluster.version == made.rounds.steps and not cluster.core.dropped
        awaited: set[int] = set()
        for envelope, commands in cluster.log:
            event = envelope.event
            if isinstance(event, ReplicaUp):
                awaited.discard(event.replica)
            assert not (awaited and any(isinstance(each, Place) for each in commands)), event
            for command in commands:
                if isinstance(command, Reconfigure):
                    merged += 1
                    awaited = {merge.number for merge in command.merges}
    assert merged > 20, "hardly ever"
