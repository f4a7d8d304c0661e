"""Tail policies, admission and streaming in the loop: nobody lost or trained on twice, no sample too old."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.balance.admission import Admission, BatchChosen, BatchWanted, Discard, Gathering
from steelyard.balance.commands import TrainOn
from steelyard.balance.core import Core
from steelyard.balance.estimate import Blind, Oracle
from steelyard.balance.events import (
    Aborted,
    Begun,
    Ended,
    Paused,
    ReplicaUp,
    Resumed,
    Sent,
)
from steelyard.balance.placement import Placement
from steelyard.balance.rollouts import Rollouts
from steelyard.balance.rounds import BatchRounds, Rounds, RoundSettings
from steelyard.balance.route.rollout import rollout_router
from steelyard.balance.tail import (
    AbortRest,
    Plain,
    Resume,
    Room,
    RoundBegan,
    StartMore,
    Tail,
    TailCommand,
    TailEvent,
    Train,
)
from steelyard.balance.tail.events import GivenUp
from steelyard.errors import UserError
from steelyard.posttrain.driver import Driver
from steelyard.posttrain.engines import EngineKind
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.summary import summarise_posttrain
from steelyard.records import Trajectory, Turn
from steelyard.scenario import posttrain_from_dict
from steelyard.scenario.rollouts import trajectories_spec
from steelyard.sim.prepared import prepare
from steelyard.workload.trajectories import trajectories_of, write_trajectories
from support.loop_runs import BLOCK, HEAVY, SEARCH, check, ran, written
from support.whole_record import WholeRecord, kept

MODES = ("split", "one-step-off", "asynchronous")
TAILS: dict[str, Any] = {
    "none": "none",
    "over-sampling": "over-sampling",
    "a little over-sampling": {"kind": "over-sampling", "factor": 1.3},
    "tail-batching": "tail-batching",
    "partial": {"kind": "partial", "budget": 300},
    "divided": {"kind": "divided", "chunk": 150},
    "repack": {"kind": "repack", "few": 0.5},
    "reconfigure": {"kind": "reconfigure", "tp": 4, "few": 0.5},
    "reconfigure if it pays": {"kind": "reconfigure", "tp": 4},
}
ONE_AT_A_TIME = ("reconfigure", "reconfigure if it pays")  # only where batches take turns


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("streaming", [False, True])
def test_nobody_is_lost_trained_on_twice_or_too_old(mode: str, tail: str, streaming: bool) -> None:
    if tail in ONE_AT_A_TIME and mode != "split":
        pytest.skip("batches overlap")
    run = ran(mode=mode, tail=TAILS[tail], streaming=streaming)
    check(run)
    assert not run.loop.driver.core.dropped, "a report that did not count"


@settings(max_examples=12)
@given(
    st.sampled_from(MODES),
    st.sampled_from(list(TAILS)[1:]),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(0, 1000),
)
def test_books_are_right_in_small_worlds(mode: str, tail: str, prompts: int, group: int, slack: int, seed: int) -> None:
    mode = "split" if tail in ONE_AT_A_TIME else mode
    asked = written(mode=mode, tail=TAILS[tail], seed=seed, trajectories={**HEAVY, "prompts": prompts, "group": group})
    usual = posttrain_from_dict(asked)
    wider = usual.staleness_bound + slack if usual.tail.carried or not usual.synchronous else None
    check(ran(**{**asked, "staleness": wider, "steps": 5}))


@pytest.mark.parametrize("mode", MODES)
def test_a_policy_that_never_does_anything_changes_nothing(mode: str) -> None:
    plain, driven = ran(mode=mode), ran(mode=mode, tail={"kind": "repack", "few": 0.0})
    assert plain.loop.record.steps == driven.loop.record.steps
    if mode == "split":
        idle = ran(mode=mode, tail={"kind": "reconfigure", "tp": 4, "few": 0.0})
        assert plain.loop.record.steps == idle.loop.record.steps


def test_over_sampling_shortens_steps_with_a_heavy_tail() -> None:
    plain = ran(trajectories=HEAVY)
    over = ran(trajectories=HEAVY, tail="over-sampling")
    assert over.seconds < 0.8 * plain.seconds and over.rate > plain.rate
    assert max(age for step in over.loop.record.steps for age in step.staleness) == 1


def test_partial_rollouts_train_on_tokens_of_two_versions_and_say_so() -> None:
    run = ran(tail=TAILS["partial"], steps=5)
    summary = summarise_posttrain(run.setup, run.loop, run.setup.scenario.gpus)
    tail = summary["tail"]
    assert tail["policy"] == "partial" and tail["versions_per_sample"]["2"] > 0
    assert tail["staleness_by_oldest_token"]["1"] > 0
    mixed = [each for batch in kept(run.loop.record).batches for each in batch if len(each.versions) == 2]
    assert len(mixed) == tail["versions_per_sample"]["2"]
    assert all(0 < tokens < each.trajectory.generated for each in mixed for tokens in each.versions.values())
    assert sum(isinstance(event, Paused) for event in run.rounds.events) >= len(mixed)


@pytest.mark.parametrize("mode", ["split", "one-step-off"])
def test_capped_trajectories_stop_where_they_should(mode: str) -> None:
    run = ran(mode=mode, tail={"kind": "divided", "chunk": 150})
    pauses = Counter(event.trajectory for event in run.rounds.events if isinstance(event, Paused))
    # One that pauses while its turn is over has one token more in the next, so chunks have 150 or 151.
    for each in kept(run.loop.record).samples:
        made = each.trajectory.generated
        assert (made - 1) // 151 - 1 <= pauses[each.trajectory.id] <= (made - 1) // 150


def test_tail_batching_begins_deferred_prompts_anew() -> None:
    run = ran(tail="tail-batching", trajectories=HEAVY, steps=8)
    drawn = Counter(each.prompt for each in run.begun)
    trained = {each.trajectory.prompt for batch in kept(run.loop.record).batches for each in batch}
    assert all(count >= 4 for count in drawn.values())  # a quarter more of each than its group needs
    again = {prompt for prompt, count in drawn.items() if count > 4}
    assert again & trained, "nobody has come back"


def test_repacking_frees_replicas_without_losing_time_to_speak_of() -> None:
    plain, packed = ran(), ran(tail=TAILS["repack"])
    assert (
        packed.loop.stage.replicas.freed_gpu_seconds > 0
        and packed.loop.stage.moves.count > plain.loop.stage.moves.count
    )
    assert packed.seconds < 1.1 * plain.seconds


@pytest.mark.parametrize("tail", ["none", "over-sampling", "tail-batching"])
def test_no_part_of_a_streamed_step_is_small(tail: str) -> None:
    """An eighth of the groups at least, the last one too, however few are waited for."""
    run = ran(streaming=True, tail={"kind": tail}, trajectories={"preset": "search", "prompts": 44, "group": 1})
    check(run)
    prompt = {each.trajectory: each.prompt for each in run.begun}
    parts: list[list[int]] = [[] for _ in range(run.setup.scenario.steps)]
    for command in run.rounds.commands:
        if isinstance(command, TrainOn):
            assert command.part == len(parts[command.step]), "parts are numbered"
            parts[command.step].append(len({prompt[name] for name in command.trajectories}))
    assert all(parts) and any(len(each) > 1 for each in parts)
    assert all(sum(each) == 44 and min(each) >= 6 for each in parts)


def test_streaming_trains_while_others_are_still_rolled_out() -> None:
    plain, streamed = ran(), ran(streaming=True)
    assert streamed.seconds < plain.seconds
    assert all(len(step.spans) > 1 for step in streamed.loop.record.steps)
    for before, after in zip(kept(plain.loop.record).batches, kept(streamed.loop.record).batches, strict=True):
        assert {each.trajectory.id for each in before} == {each.trajectory.id for each in after}


# The stage itself


@cache
def kinds() -> dict[int, EngineKind]:
    engine = {"block_size": BLOCK, "max_num_seqs": 8}
    return {tp: EngineKind.of(prepare("qwen3-14b", "a800", tp, engine)) for tp in (1, 2)}


def no_rounds() -> Rounds:
    """Begin nothing and train on nothing."""
    return BatchRounds(RoundSettings(steps=0, groups=1, size=1))


def stage(*degrees: int) -> RolloutStage:
    made = RolloutStage(
        Driver(Core(Placement(rollout_router("sticky"), Blind()), no_rounds())), kinds(), BLOCK, WholeRecord()
    )
    for number, tp in enumerate(degrees):
        made.add(number, tp, 0.0)
    return made


def begin(here: RolloutStage, trajectories: Iterable[Trajectory]) -> None:
    here.begin([(each, "") for each in trajectories], 0.0, 0)


def trajectory(name: str, *turns: tuple[int, int, float], tokens: int = 300) -> Trajectory:
    return Trajectory(name, name, "task", tuple(Turn(g, "tool", "ok", r, s) for g, r, s in turns), tokens)


def test_a_paused_trajectory_keeps_its_cache_until_weights_change() -> None:
    """Going on costs next to nothing; with new weights everything is computed again."""
    ends = []
    for cap, weights in ((None, False), (200, False), (200, True)):
        here = stage(1)
        here.cap = cap
        begin(here, [trajectory("a", (400, 0, 0.0), tokens=8000)])
        paused = here.run()
        if cap is not None:
            assert here.running["a"].held and here.running["a"].generated == 200
            if weights:
                here.new_weights(paused, paused)
            here.resume("a", paused)
            here.run()
        ends.append(kept(here.record).samples[0].ended)
        assert kept(here.record).samples[0].versions == ({0: 200, 1: 200} if weights else {0: 400})
    assert ends[0] <= ends[1] < ends[0] + 0.2 and ends[2] > ends[1] + 0.3


def test_a_tool_runs_on_while_its_trajectory_is_stopped() -> None:
    here = stage(1)
    begin(here, [trajectory("a", (20, 50, 5.0), (10, 0, 0.0))])
    here.run(until=2.0)
    assert here.running["a"].in_tool
    here.pause(["a"], 2.0)
    here.run(until=20.0)
    assert here.running["a"].returned and not kept(here.record).samples
    here.resume("a", 20.0)
    here.run()
    assert (
        20.0 < kept(here.record).samples[0].ended < 21.0 and kept(here.record).samples[0].context == 300 + 20 + 50 + 10
    )


def test_what_is_sent_elsewhere_goes_on_there() -> None:
    here = stage(1, 2)
    begin(here, [trajectory("a", (400, 100, 4.0), (100, 0, 0.0)), trajectory("b", (400, 0, 0.0))])
    here.run(until=2.0)
    homes = {name: each.replica for name, each in here.driver.core.placement.rollouts.running.items()}
    slow = next(name for name, home in homes.items() if home == 0)
    here.send(slow, 1, 2.0)
    here.close([0], 2.0)
    here.run()
    assert sorted(each.trajectory.id for each in kept(here.record).samples) == ["a", "b"]
    assert all(each.replica == 1 for each in kept(here.record).samples) and here.moves.count == 1
    here.reopen(30.0)
    assert here.replicas.freed_gpu_seconds == 28.0 and set(here.driver.core.placement.rollouts.replicas) == {0, 1}


turns = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 400), st.floats(0, 3)), min_size=1, max_size=4)
changes = st.lists(st.tuples(st.floats(0.1, 8.0), st.sampled_from(["pause", "resume", "weights", "send"])), max_size=8)


@settings(max_examples=25)
@given(st.lists(turns, min_size=1, max_size=12), changes, st.sampled_from([None, 40, 200]))
def test_tokens_are_kept_whatever_stops_and_goes_on(
    many: list[list[tuple[int, int, float]]], what: list[tuple[float, str]], cap: int | None
) -> None:
    here = stage(1, 2, 1)
    here.cap = cap
    asked = [trajectory(str(i), *each) for i, each in enumerate(many)]
    begin(here, asked)
    for at, change in sorted(what):
        here.run(until=at)
        free = [name for name, each in here.running.items() if not each.held]
        if change == "weights":
            here.new_weights(at, at + 0.5)
        elif change == "pause":
            here.pause(free[:3], at)
        elif change == "resume":
            for name in list(here.running)[:4]:
                here.resume(name, at)
        elif free:
            running = here.driver.core.placement.rollouts.running[free[0]]
            if running.replica not in (None, 1) and running.doing in ("generating", "tool"):
                here.send(free[0], 1, at)
    for _ in range(40):
        now = here.run()
        for name in list(here.running):
            here.resume(name, max(now, 9.0))
    assert sorted(each.trajectory.id for each in kept(here.record).samples) == sorted(each.id for each in asked)
    for each in kept(here.record).samples:
        assert each.generated == each.trajectory.generated
        assert max(each.versions) <= here.version
    rollouts = here.driver.core.placement.rollouts
    assert not here.driver.core.dropped
    assert not rollouts.running and all(r.busy == r.tokens == r.active == 0 for r in rollouts.replicas.values())


@pytest.mark.parametrize("recorded", [False, True])
def test_more_samples_than_a_group_has_are_drawn_like_the_others(recorded: bool, tmp_path: Path) -> None:
    asked: dict[str, Any] = SEARCH
    if recorded:
        many = [replace(trajectory(f"{i}", (10 + i, 0, 0.0)), prompt=f"p{i % 4}") for i in range(20)]
        write_trajectories(tmp_path / "t.jsonl", many)
        asked = {"file": "t.jsonl", "prompts": 6, "group": 3}
    tasks = trajectories_of(trajectories_spec(asked), 1, tmp_path)
    usual, more = list(tasks.step(2)), list(tasks.draw(range(12, 18), samples=range(8)))
    assert [each for i, each in enumerate(more) if i % 8 < 3] == usual
    assert len({each.id for each in more}) == 48
    further = list(tasks.draw([13], samples=range(3, 8)))
    assert further == more[11:16] and {each.prompt for each in further} == {usual[3].prompt}


# The decision core


def test_who_goes_on_has_had_turns_already() -> None:
    had = (Turn(50, "search", "ok", 100, 1.0), Turn(70, "search", "error", 30, 1.0))
    whole = Trajectory("a", "p", "p", (*had, Turn(80)), 10)
    placement = Placement(rollout_router("sticky"), Oracle([whole]), Oracle([whole]))
    placement.decide(ReplicaUp(0.0, 0, 1, 4, 10_000))
    placement.decide(Begun(1.0, "a", "p", 10, 0, had, 5))
    running = placement.rollouts.running["a"]
    assert running.left.mean == 80 and running.history.errors == 1 and running.context == 10 + 120 + 130 + 5


def test_a_pause_gives_up_the_seat_and_not_the_cache() -> None:
    core = Core(Placement(rollout_router("sticky"), Blind()), no_rounds())
    rollouts = core.placement.rollouts
    for number in range(2):
        core.apply(ReplicaUp(0.0, number, 1, 4, 10_000))
    core.apply(Begun(1.0, "a", "p", 10))
    home = rollouts.running["a"].replica
    assert home is not None
    core.apply(Paused(2.0, "a", 1, 25))
    there = rollouts.replicas[home]
    assert there.busy == 0 and there.tokens == 35
    core.apply(Resumed(3.0, "a", 2, left=60))
    assert there.busy == 1 and rollouts.running["a"].left.mean == 60
    core.apply(Paused(4.0, "a", 3, 30))
    core.apply(Sent(4.0, "a", 4, 1 - home))
    assert (there.tokens, rollouts.replicas[1 - home].tokens) == (0, 40) and not core.dropped


def told(tail: Tail, *events: TailEvent) -> list[TailCommand]:
    return [command for event in events for command in tail.decide(event)]


def test_a_round_leaves_groups_of_later_rounds_alone() -> None:
    tail = Tail(Plain(), Rollouts())
    assert told(tail, RoundBegan(0.0, 0, 1, 1), Room(0.0, 2)) == [StartMore(1, 1), StartMore(2, 1)]
    begun = [Begun(0.0, name, name, 10, group=name) for name in "abc"]
    assert told(tail, *begun, Ended(1.0, "c", 1, Turn(5))) == [Train(0, (("c",),)), AbortRest(("a", "b"), resume=True)]
    assert told(tail, RoundBegan(1.0, 1, 1, 1, among=("b",))) == []  # nobody new; both are still being stopped
    assert told(tail, Aborted(1.0, "a", 1), Aborted(1.0, "b", 1), Ended(2.0, "a", 2, Turn(5))) == [
        Resume("a"),
        Resume("b"),
    ]
    assert told(tail, Ended(3.0, "b", 2, Turn(5))) == [Train(1, (("b",),))]
    assert list(tail.complete) == ["a"]
    assert told(tail, GivenUp(3.0, ("a",))) == [] and not tail.groups and not tail.homes and not tail.complete


def test_who_would_be_too_old_for_a_step_to_come_goes_before_it_is_gathered() -> None:
    admission = Admission(100, 2, 1)
    for name in "ab":
        admission.decide(Begun(0.0, name, name, 5, 0, group=name))
    admission.decide(Ended(1.0, "a", 1, Turn(5)))
    assert not any(isinstance(each, Discard) for each in admission.decide(Gathering(1.0, 1)))
    assert admission.decide(BatchWanted(1.0, ("a",)))[0] == BatchChosen(1, ("a",))
    assert admission.trained == {1: 1} and admission.version == 0
    assert admission.decide(Gathering(2.0, 2))[0] == Discard(("b",))
    admission.decide(Begun(2.0, "c", "c", 5, 1, group="c"))
    before = admission.capacity
    admission.decide(GivenUp(2.0, ("c",)))
    assert admission.capacity == before + 1 and admission.running == 0


# What a user writes


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tail": "oversampling"}, "tail: not a choice; did you mean 'over-sampling'?"),
        ({"tail": {"factor": 2}}, "tail.kind: missing; choose one of none, over-sampling, tail-batching"),
        ({"tail": {"kind": "divided", "budget": 2}}, "tail.budget: unknown key; choose one of chunk, kind"),
        ({"tail": {"kind": "over-sampling", "factor": 1}}, "tail.factor: must be greater than 1"),
        ({"tail": "partial", "staleness": 0}, "staleness: tail partial carries samples over to later steps"),
        ({"tail": "over-sampling", "mode": "one-step-off", "staleness": 1}, "give 2 or more, or leave it out"),
        ({"tail": "repack", "staleness": 1}, "staleness: split is synchronous"),
        ({"streaming": True, "training": {"minibatches": 2}}, "streaming: streaming makes one update a step"),
        (
            {"streaming": True, "mode": "colocated", "rollout": [{"tp": 2, "replicas": 4}]},
            "streaming: colocated GPUs cannot train while they roll out",
        ),
    ],
)
def test_mistakes_are_named(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        posttrain_from_dict(written(**more))
    assert said in str(error.value)


def test_staleness_follows_from_mode_and_policy() -> None:
    found = {
        (mode, tail): (scenario.staleness_bound, scenario.lead)
        for mode in MODES
        for tail in ("none", "over-sampling", "divided")
        for scenario in [posttrain_from_dict(written(mode=mode, tail=tail))]
    }
    assert [found[mode, "none"] for mode in MODES] == [(0, 0), (1, 1), (2, 2)]
    assert [found[mode, "over-sampling"] for mode in MODES] == [(1, 0), (2, 1), (3, 2)]
    assert [found[mode, "divided"] for mode in MODES] == [(0, 0), (1, 1), (2, 2)]
