"""Asynchronous runs: who begins and who is trained on follows from admission; which trajectories there are does not."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.balance.commands import Start
from steelyard.balance.events import Begun
from steelyard.balance.log import Journal
from steelyard.errors import UserError
from steelyard.posttrain.compare_cases import Cases
from steelyard.posttrain.compare_choices import RIVALS
from steelyard.posttrain.replay import replay_log
from steelyard.posttrain.run import drive, posttrain
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.posttrain.starts import Drawing
from steelyard.records import Trajectory
from steelyard.scenario import posttrain_from_dict
from support.loop_runs import HEAVY, SEARCH, Ran, check, ran, written
from support.whole_record import kept

LATE = ("wait", "drop", "train")
DRIFT = {"kind": "learning", "tokens": 6.0, "turns": 2.0}
LEARNING = {"samples": 60, "stale_half": 1}
LEARNT = {**HEAVY, "drift": DRIFT, "learning": LEARNING}


def ahead(late: str = "wait", concurrency: int | None = None, **more: Any) -> Ran:
    admission = {"late": late, "concurrency": concurrency}
    return ran(**{"mode": "asynchronous", "trajectories": HEAVY, "admission": admission, **more})


def ages(run: Ran) -> list[int]:
    return [age for step in run.loop.record.steps for age in step.staleness]


def waiting(run: Ran) -> float:
    """Seconds that training waited for samples, without the last steps, which wait for all that are left."""
    return sum(step.begun - step.waited_from for step in run.loop.record.steps[:-3])


@settings(max_examples=25)
@given(
    st.sampled_from(LATE),
    st.one_of(st.none(), st.integers(3, 30)),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 1000),
)
def test_books_are_right_in_any_order_of_beginnings(
    late: str, concurrency: int | None, staleness: int, streaming: bool, seed: int
) -> None:
    run = ahead(late, concurrency, staleness=staleness, streaming=streaming, seed=seed, steps=5)
    check(run)
    assert not run.loop.driver.core.dropped, "a report that did not count"
    assert late == "train" or max(ages(run)) <= staleness


def test_late_samples_are_waited_for_dropped_or_trained_on() -> None:
    waited, dropped, overtaken = (ahead(late, steps=10) for late in LATE)
    assert max(ages(waited)) == max(ages(dropped)) == 2 < max(ages(overtaken))
    assert not kept(waited.loop.record).dropped and not kept(overtaken.loop.record).dropped
    assert kept(dropped.loop.record).dropped
    assert waiting(overtaken) < waiting(waited), "nobody is waited for"


def test_samples_are_fresher_if_few_run_at_once() -> None:
    found = [sum(ages(ahead(concurrency=most, steps=8))) for most in (None, 16, 8)]
    assert found[0] > found[1] > found[2]


def test_batches_are_not_made_in_the_order_of_beginnings() -> None:
    """With room to choose, a step trains on groups while older ones still run."""
    batches = kept(ahead(concurrency=24, steps=8).loop.record).batches
    began = [[each.begun for each in batch] for batch in batches]
    assert any(max(before) > min(after) for before, after in pairwise(began))


def test_systems_differ_in_how_old_their_samples_are() -> None:
    """By how many samples each lets run, and by what it does about those that take long."""
    slow = [{"tp": 1, "replicas": 1}]  # so that training waits for samples
    base = posttrain_from_dict(written(trajectories=HEAVY, rollout=slow, steps=10))
    named = {each.name: each.choice for each in RIVALS}
    trains = replace(named["slime"], planner="given", late="train", concurrency=None)
    choices = {
        "trains on late ones": trains,
        "one batch at once": replace(trains, concurrency=1.0),
        "one step off": replace(named["verl, one step off"], planner="given"),
        "waits": replace(trains, late="wait"),
    }
    found = {name: posttrain(Cases(base).of(each)).summary["staleness"] for name, each in choices.items()}
    means = {
        name: sum(int(age) * count for age, count in by_age.items()) / sum(by_age.values())
        for name, by_age in found.items()
    }
    assert len(set(map(str, found.values()))) == 4, found
    assert means["one batch at once"] < means["waits"], "the others have three under way"


@pytest.mark.parametrize("late", LATE)
def test_a_log_is_decided_the_same_again(late: str, tmp_path: Path) -> None:
    admission = {"late": late, "concurrency": 20}
    asked = posttrain_from_dict(written(mode="asynchronous", trajectories=HEAVY, admission=admission))
    files = [io.StringIO(), io.StringIO()]
    summaries = [posttrain(asked, journal=Journal(file)).summary for file in files]
    assert summaries[0] == summaries[1] and files[0].getvalue() == files[1].getvalue()
    (tmp_path / "log").write_text(files[0].getvalue())
    verdict = replay_log(tmp_path / "log")
    assert verdict.difference is None and verdict.events > 200


def test_dropped_tokens_are_in_the_summary() -> None:
    asked = written(mode="asynchronous", trajectories=HEAVY, admission={"late": "drop"}, steps=8)
    summary, waits = (posttrain(posttrain_from_dict(each)).summary for each in (asked, {**asked, "admission": {}}))
    thrown = summary["admission"]["thrown_away"]
    assert thrown["samples"] > 0 and 0 < thrown["share"] < 1 and "admission" not in waits


@pytest.mark.parametrize("planner", ["simulated", "libra", "one-at-a-time"])
def test_planners_see_batches_that_begin_group_by_group(planner: str) -> None:
    training = {"tp": 8, "weighed": True}
    admission = {"concurrency": 12}
    asked = written(mode="asynchronous", planner=planner, training=training, admission=admission, steps=8)
    driven = drive(posttrain_from_dict(asked))
    manager = driven.loop.manager
    assert manager is not None and len(driven.loop.record.steps) == 8
    newest = manager._ended.latest(driven.loop.record.steps[-1])  # type: ignore[attr-defined]
    assert newest is not None
    for batch in newest.batches:
        policies = {each.policy for each in batch}
        assert len(batch) == 18 and len(policies) == 1, "samples of several batches"


# -- the same trajectories for all ways -------------------------------------------------------------------------------


def drawn(run: Ran) -> dict[tuple[str, str], Trajectory]:
    """Trajectories by group and name, of all that have ended."""
    group = {event.trajectory: event.group for event in run.begun}
    return {(group[each.trajectory.id], each.trajectory.id): each.trajectory for each in kept(run.loop.record).samples}


WAYS: tuple[dict[str, Any], ...] = (
    {"mode": "split"},
    {"mode": "one-step-off", "streaming": True},
    {"mode": "asynchronous", "staleness": 3, "router": "round-robin"},
    {"mode": "asynchronous", "admission": {"late": "train", "concurrency": 9}},
    {"mode": "asynchronous", "admission": {"late": "drop"}},
    {"mode": "split", "tail": "over-sampling"},
    {"mode": "split", "tail": "tail-batching"},
    {"mode": "one-step-off", "tail": {"kind": "partial", "budget": 300}, "seed": 0},
)


def test_all_ways_to_run_have_the_same_trajectories_under_drift_by_learning() -> None:
    """Their staleness differs, and so does what they have learnt by a step."""
    runs = [ran(**{**way, "trajectories": LEARNT, "steps": 6}) for way in WAYS]
    assert len({str(sorted(ages(run))) for run in runs}) >= 5, "they differ in staleness"
    first, *others = map(drawn, runs)
    for way, found in zip(WAYS[1:], others, strict=True):
        both = first.keys() & found.keys()
        assert len(both) >= 0.3 * len(first), way  # tail policies and drops leave some out
        assert all(first[key] == found[key] for key in both), way
    lengths = [each.generated for (group, _), each in sorted(first.items(), key=lambda item: int(item[0][0]))]
    half = len(lengths) // 2
    assert sum(lengths[half:]) > 1.5 * sum(lengths[:half]), "lengths do drift"


@settings(max_examples=40)
@given(st.permutations(range(8)), st.lists(st.integers(1, 4), min_size=8, max_size=8), st.integers(0, 9))
def test_what_a_prompt_gets_does_not_depend_on_the_order_of_starts(
    order: list[int], samples: list[int], step: int
) -> None:
    setup = set_up_posttrain(posttrain_from_dict(written(trajectories={**LEARNT, "prompts": 3})))
    one, other = Drawing(setup), Drawing(setup)
    here = {
        (group, each.id): each
        for place in range(8)
        for each, group in one.samples(Start((str(place),), samples[place], 0))
    }
    there: dict[tuple[str, str], Trajectory] = {}
    for place in order:
        for _ in range(samples[place]):
            ((each, group),) = other.samples(Start((str(place),), 1, step))
            there[group, each.id] = each
    assert here == there and len({name for _, name in here}) == len(here), "names are unique"


def test_a_command_for_prompts_of_several_steps_draws_each_by_its_own() -> None:
    drawing = Drawing(set_up_posttrain(posttrain_from_dict(written(trajectories=SEARCH))))
    found = drawing.samples(Start(("4", "5", "6", "14"), 1, 0))
    assert [group for _, group in found] == ["4", "5", "6", "14"]
    assert [each.policy for each, _ in found] == ["step-0", "step-0", "step-1", "step-2"]


# -- what a user writes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"mode": "split"}, "admission: only for mode asynchronous without a tail policy"),
        ({"tail": "repack"}, "admission: only for mode asynchronous without a tail policy"),
        ({"admission": {"concurrency": 2}}, "admission.concurrency: a group has 3 samples, which begin together"),
        ({"admission": {"late": "forget"}}, "admission.late"),
    ],
)
def test_mistakes_are_named(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        posttrain_from_dict(written(**{"mode": "asynchronous", "admission": {"late": "drop"}, **more}))
    assert said in str(error.value)


def test_begun_samples_are_counted_by_the_version_they_begin_with() -> None:
    """Those that begin in the middle of a step have its version, and count as that old."""
    run = ahead(concurrency=12, steps=6)
    versions = {event.trajectory: event.version for event in run.rounds.events if isinstance(event, Begun)}
    for step, batch in enumerate(kept(run.loop.record).batches):
        assert sorted(step - versions[each.trajectory.id] for each in batch) == sorted(
            run.loop.record.steps[step].staleness
        )
