"""Admission: the published formula, what it does not bound, and a bound that holds in any order of events."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from steelyard.balance.admission import (
    Admission,
    AdmissionCommand,
    Admit,
    BatchChosen,
    BatchWanted,
    Discard,
    Versions,
)
from steelyard.balance.events import Aborted, Begun, Ended, Generated, WeightsPublished
from steelyard.errors import UserError
from steelyard.records import Turn
from support.admission_world import World


def begun(name: str, version: int) -> Begun:
    """A sample's group is the first letter of its name."""
    return Begun(0.0, name, "p", 5, version, group=name[0])


def begin(admission: Admission, *names: str, version: int = 0) -> list[AdmissionCommand]:
    return [command for name in names for command in admission.decide(begun(name, version))]


def end(admission: Admission, *names: str) -> list[AdmissionCommand]:
    return [command for name in names for command in admission.decide(Ended(0.0, name, 1, Turn(5)))]


@pytest.mark.parametrize(
    ("concurrency", "staleness", "version", "accepted", "running", "expected"),
    [(100, 0, 0, 0, 0, 8), (100, 1, 0, 0, 0, 16), (100, 1, 3, 20, 4, 16), (6, 4, 0, 0, 2, 4), (100, 0, 0, 6, 2, 0)],
)
def test_the_published_capacity(
    concurrency: int, staleness: int, version: int, accepted: int, running: int, expected: int
) -> None:
    admission = Admission(concurrency, 8, staleness)
    admission.version, admission.accepted, admission.running = version, accepted, running
    assert admission.capacity == expected
    published = min(concurrency - running, (staleness + version + 1) * 8 - accepted - running)
    assert admission.capacity == published


def test_without_staleness_rollout_stops_for_each_training_step() -> None:
    admission = Admission(10, 2, 0)
    assert admission.decide(BatchWanted(0.0)) == [Admit(2)]
    assert begin(admission, "a", "b") == []
    assert end(admission, "b") == []
    assert end(admission, "a") == [BatchChosen(0, ("b", "a"))]
    assert admission.decide(WeightsPublished(1.0, 1)) == [Admit(2)]
    assert admission.trained == {0: 2}


def test_groups_are_let_in_and_handed_out_whole() -> None:
    admission = Admission(5, 4, 1, size=2)
    assert admission.decide(BatchWanted(0.0)) == [Admit(4)]  # the fifth would be half of a group
    begin(admission, "a0", "b0", "a1", "b1")
    assert end(admission, "a0", "b0", "b1") == [Admit(2), Admit(2)]
    assert end(admission, "a1") == [BatchChosen(0, ("b0", "b1", "a0", "a1"))]


def test_the_oldest_go_first_and_the_rest_of_a_group_that_is_too_stale_goes_with_it() -> None:
    admission = Admission(100, 2, 1, size=2)
    begin(admission, "a0", "a1", "b0")
    admission.decide(WeightsPublished(0.0, 1))
    begin(admission, "b1", "c0", "c1", "d0", "d1", version=1)
    end(admission, "c0", "c1", "a0", "a1")
    assert admission.decide(BatchWanted(0.0))[0] == BatchChosen(1, ("a0", "a1"))
    assert end(admission, "b1")[:1] == []
    commands = admission.decide(WeightsPublished(0.0, 2))
    assert commands[0] == Discard(("b0", "b1"))
    assert admission.dropped == {2: 2} and admission.trained == {1: 2}
    assert end(admission, "b0") == []  # nobody waits for it
    assert admission.decide(BatchWanted(0.0))[0] == BatchChosen(2, ("c0", "c1"))


def test_samples_of_a_group_that_is_gone_go_too() -> None:
    admission = Admission(100, 2, 0, size=2)
    begin(admission, "a0")
    assert Discard(("a0",)) in admission.decide(WeightsPublished(0.0, 1))
    assert Discard(("a1",)) in begin(admission, "a1", version=1)
    assert begin(admission, "a2", version=1) == []  # the prompt once more
    assert admission.running == 1


def test_a_trajectory_that_was_stopped_is_as_old_as_it_was() -> None:
    admission = Admission(100, 1, 1)
    begin(admission, "a")
    admission.decide(Generated(0.0, "a", 0, 7))
    admission.decide(Aborted(0.0, "a", 1))
    assert (admission.running, admission.stopped) == (0, 1)
    admission.decide(WeightsPublished(0.0, 1))
    assert not any(isinstance(command, Discard) for command in begin(admission, "a", version=1))
    admission.decide(Generated(0.0, "a", 1, 3))
    assert admission.versions("a") == Versions(0, {0: 7, 1: 3})
    admission.decide(Aborted(0.0, "a", 1))
    admission.decide(WeightsPublished(0.0, 2))
    assert Discard(("a",)) in begin(admission, "a", version=2)
    assert (admission.running, admission.stopped) == (0, 0)


def test_tokens_are_counted_in_all_so_a_report_that_comes_twice_or_late_changes_nothing() -> None:
    admission = Admission(100, 1, 1)
    begin(admission, "a")
    for tokens in (7, 7, 20, 7):
        admission.decide(Generated(0.0, "a", 0, tokens))
    assert admission.versions("a") == Versions(0, {0: 20})


def test_one_in_place_of_a_lost_one_is_new() -> None:
    admission = Admission(100, 2, 1, size=2)
    begin(admission, "a0", "a1")
    admission.decide(Aborted(0.0, "a0", 1))
    admission.decide(WeightsPublished(0.0, 1))
    begin(admission, "a2", version=1)
    end(admission, "a1", "a2")
    assert admission.decide(BatchWanted(0.0))[0] == BatchChosen(1, ("a1", "a2"))
    assert admission.trained == {1: 1, 0: 1} and admission.stopped == 0


def test_whoever_comes_back_although_replaced_is_not_younger_for_it() -> None:
    admission = Admission(100, 2, 1, size=2)
    begin(admission, "a0", "a1")
    admission.decide(Aborted(0.0, "a0", 1))
    admission.decide(Aborted(0.0, "a1", 1))
    admission.decide(WeightsPublished(0.0, 2))
    begin(admission, "a2", version=2)  # in place of one of them; nobody said of which
    assert admission.running == admission.stopped == 1
    assert begin(admission, "a0", version=2)[0] == Discard(("a2", "a0", "a1"))
    assert admission.running == admission.stopped == 0


def test_tokens_of_several_versions() -> None:
    by_start, by_token = Admission(10, 1, 1), Admission(10, 1, 1, measure="oldest token")
    for admission in (by_start, by_token):
        begin(admission, "a")
        admission.decide(WeightsPublished(0.0, 1))
        admission.decide(Generated(0.0, "a", 1, 30))  # it had queued until then
        commands = admission.decide(WeightsPublished(0.0, 2))
        assert any(isinstance(command, Discard) for command in commands) == (admission is by_start)
    by_token.decide(Generated(0.0, "a", 2, 50))
    end(by_token, "a")
    by_token.decide(BatchWanted(0.0))
    assert by_token.trained == {1: 1} and by_token.trained_tokens == {1: 30, 0: 50}


def test_a_round_may_choose_its_batch() -> None:
    admission = Admission(10, 4, 2, size=2)
    begin(admission, "a0", "a1", "b0", "b1")
    end(admission, "a0", "a1", "b0")
    assert admission.decide(BatchWanted(0.0, ("a0", "a1", "b0", "b1")))[0] == BatchChosen(0, ("a0", "a1"))
    assert end(admission, "b1")[:1] == []


def test_the_formula_alone_bounds_nothing_for_those_that_take_long() -> None:
    """One trajectory runs on while others pass by: as published it is trained on however stale."""
    admission = Admission(2, 1, 0, late="train")
    begin(admission, "z")
    for version in range(5):
        begin(admission, f"a{version}", version=version)
        admission.decide(BatchWanted(0.0))
        end(admission, f"a{version}")
        admission.decide(WeightsPublished(0.0, version + 1))
    admission.decide(BatchWanted(0.0))
    end(admission, "z")
    assert admission.trained == {0: 5, 5: 1}


def test_what_cannot_be() -> None:
    with pytest.raises(UserError, match=r"batch \(10\) must be a multiple of the group size \(4\)"):
        Admission(100, 10, 1, size=4)
    with pytest.raises(UserError, match=r"concurrency \(3\)"):
        Admission(3, 8, 1, size=4)


@given(st.integers(0, 2**32), st.integers(0, 3), st.integers(1, 3))
@settings(max_examples=40)
def test_the_bound_holds_in_any_order_and_no_sample_is_lost(seed: int, staleness: int, size: int) -> None:
    world = World(Random(seed), staleness, size)
    for _ in range(200):
        world.happen(faults=True)
        world.check()
    before = world.batches
    for _ in range(1500):
        world.happen(faults=False)
        if world.batches > before + 2:
            break
    assert world.batches > before + 2, "nothing is trained on any more"
    again = world.fresh()
    for event, commands in world.log:  # written down and read back, events give the same commands once more
        assert again.decide(read_back(event)) == [read_back(command) for command in commands]


adapter = cache(TypeAdapter[Any])


def read_back(entry: Any) -> Any:
    kind: Any = type(entry)
    return adapter(kind).validate_json(json.dumps(asdict(entry)), strict=True)
