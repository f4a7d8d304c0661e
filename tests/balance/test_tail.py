"""Tail policies: what each does in a round, and random worlds in which no sample may be lost or trained on twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from steelyard.balance.estimate import Left
from steelyard.balance.events import Aborted, Begun, Ended, ReplicaUp, Returned
from steelyard.balance.rollouts import Rollouts
from steelyard.balance.tail import (
    AbortRest,
    Cap,
    Defer,
    Divided,
    OverSampling,
    PartialRollout,
    Paused,
    Plain,
    Repack,
    Repacking,
    Resume,
    RoundBegan,
    StartAgain,
    StartMore,
    Tail,
    TailBatching,
    TailCommand,
    Train,
    TrajectoryMove,
    gather,
)
from steelyard.records import Turn
from support.tail_world import POLICIES, World


def begin(tail: Tail, group: str, samples: Iterable[str]) -> list[TailCommand]:
    return [command for name in samples for command in tail.decide(Begun(0.0, name, "p", 10, group=group))]


def end(tail: Tail, *names: str, tokens: int = 100) -> list[TailCommand]:
    return [command for name in names for command in tail.decide(Ended(0.0, name, 1, Turn(tokens)))]


def test_without_a_policy_the_last_sample_ends_the_round() -> None:
    tail = Tail(Plain(), Rollouts())
    assert tail.decide(RoundBegan(0.0, 0, 2, 2)) == [StartMore(2, 2)]
    begin(tail, "a", ("a0", "a1"))
    begin(tail, "b", ("b0", "b1"))
    assert end(tail, "a1", "b0", "b1") == []
    assert end(tail, "a0") == [Train(0, (("b0", "b1"), ("a1", "a0")))]
    with pytest.raises(ValueError, match="round 2 begins before round 1 is over"):
        tail.decide(RoundBegan(0.0, 1, 1, 1))
        tail.decide(RoundBegan(0.0, 2, 1, 1))


def test_a_sample_that_was_lost_is_replaced() -> None:
    tail = Tail(Plain(), Rollouts())
    tail.decide(RoundBegan(0.0, 0, 1, 3))
    begin(tail, "a", ("a0",))
    assert tail.decide(Aborted(0.0, "a0", 1)) == [StartAgain("a", 1)]  # the other two are still to come
    begin(tail, "a", ("a1", "a2", "a3"))
    assert end(tail, "a1", "a2", "a3") == [Train(0, (("a1", "a2", "a3"),))]


def test_over_sampling_stops_at_enough_and_goes_on_with_the_rest() -> None:
    tail = Tail(OverSampling(2.0), Rollouts())
    assert tail.decide(RoundBegan(0.0, 0, 1, 2)) == [StartMore(2, 2)]
    begin(tail, "a", ("a0", "a1"))
    begin(tail, "b", ("b0", "b1"))
    assert end(tail, "a0", "b1", "b0") == [Train(0, (("b1", "b0"),)), AbortRest(("a1",), resume=True)]
    assert tail.decide(Aborted(1.0, "a1", 1)) == []
    assert tail.decide(RoundBegan(2.0, 1, 1, 2)) == [Resume("a1"), StartMore(1, 2)]
    assert tail.decide(Begun(2.0, "a1", "p", 10, group="a")) == []
    assert end(tail, "a1") == [Train(1, (("a0", "a1"),))]


def test_a_sample_that_ends_before_it_could_be_stopped_counts() -> None:
    tail = Tail(OverSampling(2.0), Rollouts())
    tail.decide(RoundBegan(0.0, 0, 1, 1))
    begin(tail, "a", ("a0",))
    begin(tail, "b", ("b0",))
    assert end(tail, "a0") == [Train(0, (("a0",),)), AbortRest(("b0",), resume=True)]
    begin(tail, "c", ("c0",))  # late, and done before the next round
    assert end(tail, "b0", "c0") == []
    assert tail.decide(RoundBegan(1.0, 1, 1, 1)) == [Train(1, (("b0",),))]
    assert tail.decide(RoundBegan(1.0, 2, 1, 1)) == [StartMore(1, 1), Train(2, (("c0",),))]


def test_a_sample_whose_stop_is_confirmed_late_goes_on_at_once() -> None:
    tail = Tail(OverSampling(2.0), Rollouts())
    tail.decide(RoundBegan(0.0, 0, 1, 1))
    begin(tail, "a", ("a0",))
    begin(tail, "b", ("b0",))
    end(tail, "a0")
    assert tail.decide(RoundBegan(1.0, 1, 1, 1)) == [StartMore(1, 1)]
    assert tail.decide(Paused(1.5, "b0", 1, 10)) == []
    assert tail.decide(Aborted(2.0, "b0", 1)) == [Resume("b0")]


def test_a_sample_that_is_lost_between_two_rounds_is_replaced_in_the_next() -> None:
    tail = Tail(OverSampling(2.0), Rollouts())
    tail.decide(RoundBegan(0.0, 0, 1, 1))
    begin(tail, "a", ("a0",))
    begin(tail, "b", ("b0",))
    end(tail, "a0")
    for _ in range(2):  # stopped as told, and then lost
        assert tail.decide(Aborted(0.5, "b0", 1)) == []
    assert tail.decide(RoundBegan(1.0, 1, 1, 1)) == [StartAgain("b", 1), StartMore(1, 1)]


def test_tail_batching_defers_long_prompts_to_a_round_of_their_own() -> None:
    tail = Tail(TailBatching(1.5, 1.5), Rollouts())
    for step in range(2):
        assert tail.decide(RoundBegan(0.0, step, 2, 2)) == [StartMore(3, 3)]
        names = {group: [f"{group}{step}.{i}" for i in range(3)] for group in "abc"}
        for group, samples in names.items():
            begin(tail, f"{group}{step}", samples)
        a, b, c = names.values()
        assert end(tail, a[2], a[0]) == [AbortRest((a[1],), resume=False)]  # the first two are enough
        assert end(tail, c[0], b[0], b[1]) == [
            AbortRest((b[2],), resume=False),
            Train(step, ((a[2], a[0]), (b[0], b[1]))),
            Defer((f"c{step}",)),
            AbortRest((c[1], c[2]), resume=False),
        ]
        assert tail.decide(Aborted(0.0, c[1], 1)) == end(tail, c[2]) == []
    assert tail.deferred == ["c0", "c1"]
    assert tail.decide(RoundBegan(1.0, 2, 2, 2)) == [StartAgain("c0", 2), StartAgain("c1", 2)]
    begin(tail, "c1", ("x0", "x1"))
    begin(tail, "c0", ("y0", "y1"))
    assert end(tail, "x0", "y1", "x1", "y0") == [Train(2, (("x0", "x1"), ("y1", "y0")))]
    assert not tail.deferred and tail.decide(RoundBegan(2.0, 3, 2, 2)) == [StartMore(3, 3)]


def test_samples_that_begin_after_their_group_is_done_with_are_not_needed() -> None:
    tail = Tail(TailBatching(1.0, 1.5), Rollouts())
    assert tail.decide(RoundBegan(0.0, 0, 1, 2)) == [StartMore(1, 3)]
    begin(tail, "a", ("a0", "a1"))
    assert end(tail, "a0", "a1") == [Train(0, (("a0", "a1"),))]
    assert begin(tail, "a", ("a2",)) == [AbortRest(("a2",), resume=False)]
    assert not tail.groups and not tail.homes


def test_partial_rollouts_carry_on_what_is_not_done() -> None:
    tail = Tail(PartialRollout(50), Rollouts())
    assert tail.decide(RoundBegan(0.0, 0, 2, 1)) == [Cap(50), StartMore(2, 1)]
    begin(tail, "a", ("a0",))
    assert tail.decide(Paused(1.0, "a0", 1, 50)) == []  # another is still to begin
    begin(tail, "b", ("b0",))
    assert tail.decide(Paused(1.0, "b0", 1, 50)) == [Resume("a0"), Resume("b0")]  # nothing to train on yet
    assert end(tail, "a0") == []
    assert tail.decide(Paused(2.0, "b0", 1, 100)) == [Train(0, (("a0",),))]
    assert tail.decide(RoundBegan(3.0, 1, 2, 1)) == [Resume("b0"), StartMore(1, 1)]


def test_divided_rollouts_learn_lengths_from_those_of_the_group_that_have_ended() -> None:
    tail = Tail(Divided(100, longest=10_000), Rollouts())
    assert tail.decide(RoundBegan(0.0, 0, 2, 3)) == [Cap(100), StartMore(2, 3, first=1)]
    begin(tail, "a", ("a0", "a1", "a2"))
    begin(tail, "b", ("b0", "b1", "b2"))
    assert tail.decide(Paused(1.0, "a0", 1, 100)) == [
        Resume("a0", 100 - 20_000)
    ]  # first of its group: before all others
    assert tail.decide(Paused(1.0, "a1", 1, 100)) == [Resume("a1", -10_000)]  # may be as long as any
    tail.decide(Returned(1.0, "a0", 1, Turn(150)))
    end(tail, "a0", tokens=200)  # 350 in all
    assert tail.decide(Paused(2.0, "a1", 1, 200)) == [Resume("a1", -150, 150)]
    assert tail.decide(Paused(2.0, "a2", 1, 100)) == [Resume("a2", -250, 250)]  # longer, so before the other
    assert tail.decide(Paused(2.0, "b1", 1, 100)) == [Resume("b1", -10_000)]
    assert tail.decide(Paused(3.0, "a2", 1, 400)) == [Resume("a2", -10_000)]  # has outgrown what was known


# Repacking


def engines(*tps: int, seats: int = 8, tokens: int = 1000) -> Rollouts:
    rollouts = Rollouts()
    for number, tp in enumerate(tps):
        rollouts.apply(ReplicaUp(0.0, number, tp, seats, tokens))
    return rollouts


def put(rollouts: Rollouts, name: str, replica: int, context: int = 10, left: float = 0.0) -> None:
    trajectory = rollouts.apply(Begun(0.0, name, name, context))
    assert trajectory is not None
    rollouts.place(trajectory, replica, "keep")
    trajectory.left = Left(left, left)


def test_survivors_are_gathered_on_the_fast_replica_and_others_are_freed() -> None:
    rollouts = engines(1, 4, 1, 1)
    for replica in range(3):
        put(rollouts, f"t{replica}", replica)
    assert gather(rollouts, 0.5) == Repack((TrajectoryMove("t0", 0, 1), TrajectoryMove("t2", 2, 1)), freed=(0, 2, 3))


@pytest.mark.parametrize(("seats", "left"), [(2, 0.0), (8, 450.0)])
def test_nobody_is_moved_where_there_is_no_room(seats: int, left: float) -> None:
    """Half of the seats, and of the cache for what they will hold in the end, is to be filled."""
    rollouts = engines(1, 1, seats=seats)
    put(rollouts, "a", 0, left=left)
    put(rollouts, "b", 1, left=left)
    assert gather(rollouts, 0.5) is None
    assert gather(rollouts, 1.0) == Repack((TrajectoryMove("b", 1, 0),), freed=(1,))


def test_nobody_is_moved_while_somebody_waits() -> None:
    rollouts = engines(1, 1)
    put(rollouts, "a", 0)
    put(rollouts, "b", 1)
    rollouts.apply(Begun(0.0, "c", "c", 10))
    assert gather(rollouts, 1.0) is None


@given(
    st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 300), st.integers(0, 300)), min_size=1, max_size=12),
)
def test_gathering_moves_each_at_most_once_and_keeps_within_the_room_there_is(
    tps: list[int], left: list[tuple[int, int, int]]
) -> None:
    rollouts = engines(*tps)
    for index, (replica, context, tokens) in enumerate(left):
        put(rollouts, f"t{index}", replica % len(tps), context, float(tokens))
    before = {trajectory.name: trajectory.replica for trajectory in rollouts.running.values()}
    repack = gather(rollouts, 1.0)
    if repack is None:
        return
    after = dict(before)
    for move in repack.moves:
        assert after[move.trajectory] == move.source == before[move.trajectory] != move.target
        after[move.trajectory] = move.target
    assert not set(after.values()) & set(repack.freed)
    assert set(repack.freed) & set(before.values()), "a repack that frees nobody"
    assert set(after.values()) | set(repack.freed) == set(range(len(tps)))
    for number, count in Counter(after.values()).items():
        need = sum(left[i][1] + left[i][2] for i in range(len(left)) if after[f"t{i}"] == number)
        assert count <= 8 and need <= 1000


def test_a_policy_repacks_when_few_are_left_and_again_when_half_of_them_are() -> None:
    rollouts = engines(1, 1, 1, 1)
    tail = Tail(Repacking(few=0.5), rollouts)
    tail.decide(RoundBegan(0.0, 0, 8, 1))
    for index in range(8):
        put(rollouts, f"t{index}", index % 4)
        begin(tail, f"t{index}", (f"t{index}",))
    packed = []
    for index in range(7):
        ended = Ended(1.0, f"t{index}", 1, Turn(5))
        rollouts.apply(ended)
        packed.append(any(isinstance(command, Repack) for command in tail.decide(ended)))
    assert packed == [False, False, False, True, False, True, False]  # 4 left, then 2; then all are on one


# A world that begins, stops and ends samples whenever it likes


@pytest.mark.parametrize("policy", POLICIES)
@given(st.integers(0, 2**32))
@settings(max_examples=12)
def test_no_sample_is_lost_or_trained_on_twice_and_every_round_ends(policy: str, seed: int) -> None:
    world = World(POLICIES[policy](), Random(seed))
    world.next_round()
    for _ in range(250):
        world.happen(faults=True)
        world.check()
    for _ in range(3):  # rounds end as long as samples do
        for _ in range(2000):
            if not world.open:
                break
            world.happen(faults=False)
        assert not world.open
        world.next_round()
    again = Tail(POLICIES[policy](), Rollouts())
    for event, commands in world.log:  # written down and read back, events give the same commands once more
        assert again.decide(read_back(event)) == [read_back(command) for command in commands]


adapter = cache(TypeAdapter[Any])


def read_back(entry: Any) -> Any:
    kind: Any = type(entry)
    return adapter(kind).validate_json(json.dumps(asdict(entry)), strict=True)


def test_over_many_rounds_tail_batching_trains_on_every_prompt_it_has_begun() -> None:
    world = World(TailBatching(), Random(3))
    world.next_round()
    for _ in range(6_000):
        world.happen(faults=False)
    assert world.step > 60
    begun = sorted({int(group[1:]) for group in world.group.values()})
    waiting = {int(name[1:]) for name in (*world.tail.deferred, *world.tail.groups)}
    assert set(begun) - waiting == {int(group[1:]) for group in world.trained_groups}
    assert len(waiting) <= 3 * world.wanted
