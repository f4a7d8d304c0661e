"""The rollout stage and the loop around it: nobody lost, turns in time, versions within bounds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from steelyard.balance.commands import Abort, Cache, RoundCommand
from steelyard.balance.core import Core
from steelyard.balance.estimate import Blind
from steelyard.balance.events import Generated, Moved
from steelyard.balance.placement import Placement
from steelyard.balance.rollouts import Rollouts, Running
from steelyard.balance.rounds import BatchRounds
from steelyard.balance.rounds.protocol import RoundInput
from steelyard.balance.route import Router
from steelyard.balance.route.plain import LeastOutstanding, RoundRobin, Sticky
from steelyard.balance.route.rollout import TurnChoice, TurnRouter, rollout_router
from steelyard.balance.route.rollout.plain import RequestTurns
from steelyard.cli import app
from steelyard.engine import BlockNames, BriefLog, Request
from steelyard.errors import UserError
from steelyard.posttrain.attempt import Attempt
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.driver import Driver
from steelyard.posttrain.engines import EngineKind
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.planning import Training
from steelyard.posttrain.result import PosttrainResult
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.records import Trajectory, Turn
from steelyard.scenario import load_posttrain, posttrain_from_dict
from steelyard.sim.prepared import prepare
from support.paths import EXAMPLES
from support.whole_record import WholeRecord, kept

SIZE = 64


@cache
def kinds() -> dict[int, EngineKind]:
    engine = {"block_size": SIZE, "max_num_seqs": 8}
    return {tp: EngineKind.of(prepare("qwen3-14b", "a800", tp, engine)) for tp in (1, 2)}


class NoRounds:
    """Starts nothing and trains on nothing. It gives a trajectory up when it is told of an event of some kind."""

    counts_tokens = True

    def __init__(self, give_up: str = "", told: type[Generated | Moved] = Generated) -> None:
        self._give_up, self._told = give_up, told

    def decide(self, event: RoundInput) -> list[RoundCommand]:
        if isinstance(event, self._told) and event.trajectory == self._give_up:
            return [Abort((self._give_up,))]
        return []

    def unfinished(self) -> list[str]:
        return []


def stage(*degrees: int, router: TurnRouter | None = None, rounds: NoRounds | None = None) -> RolloutStage:
    core = Core(Placement(router or rollout_router("sticky"), Blind()), rounds or NoRounds())
    made = RolloutStage(Driver(core), kinds(), SIZE, WholeRecord())
    for number, tp in enumerate(degrees):
        made.add(number, tp, 0.0)
    return made


def begin(here: RolloutStage, trajectories: Iterable[Trajectory | Attempt], at: float, version: int) -> None:
    here.begin([(each, "group") for each in trajectories], at, version)


def ids(attempts: Iterable[Attempt]) -> list[str]:
    return [each.trajectory.id for each in attempts]


def trajectory(name: str, *turns: tuple[int, int, float], prompt: str = "p", tokens: int = 300) -> Trajectory:
    return Trajectory(name, prompt, "task", tuple(Turn(g, "tool", "ok", r, s) for g, r, s in turns), tokens)


def alone(prompt: int, output: int, given: int, clock: float) -> float:
    """When an idle engine is through with one request that it is asked for at ``clock``."""
    engine = kinds()[1].engine(BlockNames(SIZE), BriefLog())
    engine.clock = clock
    r = Request(0, clock, prompt, output, given=given)
    engine.submit(r, clock)
    engine.advance(float("inf"))
    return engine.end_of(r)


def test_one_that_is_given_up_over_its_last_tokens_is_stopped_and_not_done() -> None:
    """Whoever is told of tokens may find them too old, while the turn that made them is just over."""
    here = stage(1, rounds=NoRounds("a", Generated))
    begin(here, [trajectory("a", (40, 0, 0.0)), trajectory("b", (60, 0, 0.0))], 0.0, 0)
    here.run()
    assert ids(kept(here.record).dropped) == ["a"] and not here.running
    assert ids(kept(here.record).samples) == ["b"]


class WithCaches(RequestTurns):
    """Each turn to the next replica, and what is cached goes along."""

    def choose(self, trajectory: Running, rollouts: Rollouts, at: float) -> TurnChoice | None:
        chosen = super().choose(trajectory, rollouts, at)
        return None if chosen is None else replace(chosen, cache="keep")


def test_one_that_is_given_up_when_its_cache_has_moved_is_not_run_there() -> None:
    """Whoever is told of that may have found by then that nobody needs it."""
    here = stage(1, 1, 1, router=WithCaches(RoundRobin()), rounds=NoRounds("a", Moved))
    begin(here, [trajectory("a", (40, 10, 1.0), (9, 0, 0.0)), trajectory("b", (60, 10, 1.0), (9, 0, 0.0))], 0.0, 0)
    here.run()
    assert ids(kept(here.record).dropped) == ["a"] and not here.running
    assert ids(kept(here.record).samples) == ["b"] and here.moves.count == 2


def test_turns_and_tools_of_one_trajectory_follow_each_other() -> None:
    here = stage(1)
    begin(here, [trajectory("a", (50, 200, 2.5), (20, 0, 0.0))], 0.0, 0)
    here.run()
    first = alone(300, 50, 0, 0.0)
    cached = (300 + 50 - 1) // SIZE * SIZE  # the answer's last token is in no cache
    assert kept(here.record).samples[0].ended == pytest.approx(alone(550, 20, cached, first + 2.5), rel=1e-6)


def test_what_is_moved_needs_no_prompt_but_time() -> None:
    long = trajectory("a", (50, 4000, 1.0), (5, 0, 0.0), (5, 0, 0.0))
    apart, together = (stage(*degrees, router=rollout_router("round-robin")) for degrees in ((1, 1), (1,)))
    for each in (apart, together):
        begin(each, [long], 0.0, 0)
        each.run()
    ends = [kept(each.record).samples[0].ended for each in (apart, together)]
    assert ends[0] > ends[1]  # without its cache it computes everything again
    assert not apart.running and not together.running


class Offloading(RequestTurns):
    """Caches are in the host's memory while tools run."""

    def park(self, trajectory: Running, rollouts: Rollouts) -> Cache:
        return "offload"


def sticky() -> Router:
    return Sticky(LeastOutstanding())


def test_what_is_in_one_hosts_memory_is_nowhere_else() -> None:
    """Dropped on the way or lost with its replica, a context is computed again, wherever it was parked."""
    asked = trajectory("a", (20, 0, 5.0), (5, 0, 0.0), tokens=20_000)
    for lost in (False, True):
        ends = []
        for router in (RequestTurns(RoundRobin()), Offloading(RoundRobin())):
            here = stage(1, 1, router=router)
            begin(here, [asked], 0.0, 0)
            here.run(until=6.0)
            assert here.running["a"].in_tool
            if lost:
                here.remove(0, 6.0)
            here.run()
            ends.append(kept(here.record).samples[0].ended)
        assert ends[0] == ends[1] > alone(20_020, 5, 0, 8.5)


def test_what_was_sent_from_a_hosts_memory_is_there_when_it_has_come() -> None:
    here = stage(1, 1, router=Offloading(sticky()))
    begin(here, [trajectory("a", (20, 0, 5.0), (5, 0, 0.0), tokens=20_000)], 0.0, 0)
    here.run(until=8.65)
    here.send("a", 1, 8.65)
    attempt = here.running["a"]
    came = attempt.arrives
    here.run()
    assert attempt.ended == pytest.approx(alone(20_020, 5, 20_020, came), rel=1e-6)


def test_what_was_cached_under_old_weights_is_worthless_in_a_hosts_memory_too() -> None:
    ends = []
    for router in (RequestTurns(sticky()), Offloading(sticky())):
        here = stage(1, router=router)
        begin(here, [trajectory("a", (20, 0, 5.0), (5, 0, 0.0), tokens=20_000)], 0.0, 0)
        here.run(until=6.0)
        assert here.running["a"].in_tool
        here.new_weights(6.0, 6.0)
        here.run()
        ends.append(kept(here.record).samples[0].ended)
    assert ends[0] == ends[1] > alone(20_020, 5, 0, 8.5)


def test_an_engine_that_goes_in_a_turns_last_step_loses_that_step_alone() -> None:
    whole, here = stage(1), stage(1, 1)
    for each in (whole, here):
        begin(each, [trajectory("a", (100, 0, 0.0))], 0.0, 0)
    whole.run()
    end = kept(whole.record).samples[0].ended
    here.run(until=end - 0.001)
    here.remove(0, end - 0.001)
    assert here.running["a"].generated == 99
    here.run()
    assert kept(here.record).samples[0].versions == {0: 100} and kept(here.record).samples[0].ended < 1.5 * end


class Never(RequestTurns):
    """Places nobody for a while."""

    closed = False

    def choose(self, trajectory: Running, rollouts: Rollouts, at: float) -> TurnChoice | None:
        return None if self.closed else super().choose(trajectory, rollouts, at)


def test_the_tool_of_one_that_was_stopped_returns_once() -> None:
    router = Never(sticky())
    here = stage(1, router=router)
    asked = trajectory("a", (20, 7, 50.0), (5, 9, 1.0), (5, 0, 0.0))
    begin(here, [asked, trajectory("z", (20, 0, 100.0), (5, 0, 0.0), prompt="q")], 0.0, 0)
    here.run(until=10.0)
    here.abort(["a"], 10.0)
    router.closed = True
    begin(here, [kept(here.record).dropped.pop()], 11.0, 0)  # as if its tool had returned by now
    here.run(until=90.0)
    assert here.running["a"].turns == 1


def test_stopped_trajectories_go_on_where_they_were() -> None:
    here = stage(1)
    begin(here, [trajectory("a", (500, 100, 1.0), (100, 0, 0.0))], 0.0, 0)
    here.run(until=3.0)
    here.abort(["a"], 3.0)
    (stopped,) = kept(here.record).dropped
    assert 0 < stopped.tokens < 500 and stopped.context == 300 + stopped.tokens
    assert not here.running and not here.driver.core.placement.rollouts.running
    begin(here, [stopped], 10.0, 1)
    here.run()
    (done,) = kept(here.record).samples
    assert done.context == 300 + 500 + 100 + 100 and done.version == 0
    whole = stage(1)
    begin(whole, [trajectory("a", (500, 100, 1.0), (100, 0, 0.0))], 0.0, 0)
    whole.run()
    assert done.ended - 10.0 < kept(whole.record).samples[0].ended < done.ended


def test_engines_stand_still_while_weights_change() -> None:
    ends = []
    for pause in (0.0, 5.0):
        here = stage(1)
        begin(here, [trajectory("a", (400, 0, 0.0))], 0.0, 0)
        here.run(until=2.0)
        if pause:
            here.new_weights(2.0, 2.0 + pause)
        here.run()
        ends.append(kept(here.record).samples[0].ended)
    assert ends[1] - ends[0] == pytest.approx(5.0, abs=0.1)


@pytest.mark.parametrize("change", [False, True])
def test_a_turn_finds_what_the_one_before_it_cached_unless_weights_have_changed(change: bool) -> None:
    here = stage(1)
    begin(here, [trajectory("a", (400, 200, 1.0), (400, 0, 0.0))], 0.0, 0)
    here.run(until=2.0)
    first = here.running["a"].request
    assert first is not None and first.grouped
    if change:
        here.new_weights(2.0, 2.0)
    at = 2.0
    while here.running["a"].request in (None, first):
        at += 0.5
        here.run(until=at)
    second = here.running["a"].request
    assert second is not None and len(second.keys) == (300 + 400 + 200) // SIZE
    assert set(first.keys) & set(second.keys) == (set() if change else set(first.keys))
    assert len(first.keys) == (300 + 400 - 1) // SIZE


turns = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 400), st.floats(0, 3)), min_size=1, max_size=4)


@settings(max_examples=25)
@given(
    st.lists(turns, min_size=1, max_size=30),
    st.sampled_from(["sticky", "least-outstanding", "round-robin"]),
    st.lists(st.tuples(st.floats(0.1, 8.0), st.sampled_from(["remove", "abort", "weights"])), max_size=4),
)
def test_nobody_is_lost_or_served_twice(many: list[list[tuple[int, int, float]]], router: str, changes: list) -> None:  # type: ignore[type-arg]
    here = stage(1, 2, 1, router=rollout_router(router))
    asked = [trajectory(str(i), *each, prompt=str(i // 4)) for i, each in enumerate(many)]
    begin(here, asked, 0.0, 0)
    added = 3
    for at, what in sorted(changes):
        here.run(until=at)
        if what == "remove":
            here.remove(min(here.engines), at)
            here.add(added, 1, at)
            added += 1
        elif what == "abort" and here.running:
            name = sorted(here.running)[0]
            here.abort([name], at)
            begin(here, [kept(here.record).dropped.pop()], at, 1)
        elif what == "weights":
            here.new_weights(at, at + 0.5)
    here.run()
    assert sorted(ids(kept(here.record).samples)) == sorted(each.id for each in asked)
    for each in kept(here.record).samples:
        given_out = each.trajectory.prompt_tokens + each.trajectory.generated
        assert each.context == given_out + sum(turn.returned for turn in each.trajectory.turns[:-1])
    ends = [each.ended for each in kept(here.record).samples]
    core = here.driver.core
    rollouts = core.placement.rollouts
    assert ends == sorted(ends) and not here.running and not rollouts.running
    assert all(not replica.placed and replica.busy == 0 for replica in rollouts.replicas.values())
    assert not core.dropped


def loop(**more: object) -> WholeRecord:
    written = {
        "model": "qwen3-14b",
        "gpu": "a800",
        "trajectories": {"preset": "search", "prompts": 8, "group": 4},
        "rollout": [{"tp": 2, "replicas": 2}],
        "training": {"tp": 4, "dp": 2},
        "engine": {"block_size": SIZE},
        "steps": 4,
    }
    setup = set_up_posttrain(posttrain_from_dict({**written, **more}))
    core = Core(Placement(rollout_router("sticky"), Blind()), BatchRounds(core_settings(setup).rounds))
    return kept(Loop(setup, core, record=WholeRecord()).run())


@pytest.mark.parametrize(("mode", "bound"), [("split", 0), ("one-step-off", 1), ("asynchronous", 2)])
def test_samples_are_never_older_than_allowed(mode: str, bound: int) -> None:
    record = loop(mode=mode)
    assert len(record.samples) == 4 * 32 and len({each.trajectory.id for each in record.samples}) == 4 * 32
    assert max(age for step in record.steps for age in step.staleness) == bound
    for before, after in zip(record.steps, record.steps[1:], strict=False):
        assert before.begun < before.trained < before.synced <= after.begun


def test_overlap_saves_time_and_turns_do_not() -> None:
    spans = {mode: loop(mode=mode).steps[-1].synced for mode in ("split", "one-step-off", "asynchronous")}
    assert spans["asynchronous"] <= spans["one-step-off"] < spans["split"]


def test_the_same_scenario_gives_the_same_run() -> None:
    assert loop(mode="asynchronous").steps == loop(mode="asynchronous").steps


def test_too_long_a_trajectory_is_refused() -> None:
    here = stage(1)
    with pytest.raises(UserError, match=r"trajectory a comes to 1,000,300 tokens, and engines take 40,960"):
        begin(here, [trajectory("a", (1_000_000, 0, 0.0))], 0.0, 0)


PRESETS = EXAMPLES / "posttrain"
SMALL = ["--set", "trajectories={preset: search, prompts: 8, group: 4}", "--set", "steps=2"]


def test_the_command_writes_a_summary_and_a_timeline(tmp_path: Path) -> None:
    out = tmp_path / "run"
    ran = CliRunner().invoke(app, ["posttrain", str(PRESETS / "search-48.yaml"), "--out", str(out), *SMALL])
    assert ran.exit_code == 0, ran.output
    summary = json.loads((out / "summary.json").read_text())
    assert summary["samples"] == 64 and summary["staleness"] == {"0": 32, "1": 32}
    parts = summary["step_seconds"]
    assert sum(value for name, value in parts.items() if name != "total") == pytest.approx(parts["total"])
    for shares in summary["gpu_time"].values():
        assert sum(shares.values()) == pytest.approx(1.0) and min(shares.values()) >= 0
    assert (out / "timeline.svg").read_text().startswith("<svg")
    loaded = PosttrainResult.load(out)
    assert loaded.summary == summary and loaded.steps["samples"].tolist() == [32, 32]
    assert np.bincount(loaded.trajectories["step"]).tolist() == [32, 32]
    assert load_posttrain(out / "scenario.json").steps == 2
    again = CliRunner().invoke(
        app, ["posttrain", str(PRESETS / "search-48.yaml"), "--json", "--out", str(tmp_path / "b"), *SMALL]
    )
    assert json.loads(again.stdout) == summary
    for name in sorted(path.name for path in out.iterdir()):
        assert (out / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("mode=colocated", "rollout: colocated runs on the same GPUs, but rollouts have 32 and training 16"),
        ("mode=split staleness=1", "staleness: split is synchronous"),
        ("router=fastest", "router"),
        ("training.tp=3", "training: "),
        ("gpu=a900", "gpu: "),
        ("trajectories=searching", "trajectories: not a preset; did you mean 'search'?"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, change: str, said: str) -> None:
    changes = [part for each in change.split() for part in ("--set", each)]
    out = tmp_path / "run"
    ran = CliRunner().invoke(app, ["posttrain", str(PRESETS / "search-48.yaml"), "--out", str(out), *changes])
    assert isinstance(ran.exception, UserError) and said in str(ran.exception)
    assert not out.exists()


def test_a_plan_for_the_scenarios_gpus_is_recommended() -> None:
    small = ["--set", "trajectories={preset: search, prompts: 8, group: 4}", "--set", "training.dp=2"]
    asked = ["plan", str(PRESETS / "search-48.yaml"), "--set", "rollout=[{tp: 2, replicas: 4}]", *small]
    ran = CliRunner().invoke(app, [*asked, "--json"])
    assert ran.exit_code == 0, ran.output
    plan = json.loads(ran.stdout)
    rolling = sum(bucket["tp"] * bucket["replicas"] for bucket in plan["rollout"])
    assert rolling > 0 and plan["training"]["gpus"] + rolling <= 16
    assert plan["step_seconds"] <= plan["runner_up"]["step_seconds"]
    assert plan["times_from"] == {"rollout": ["roofline"], "training": {"analytic": 1.0}}
    said = CliRunner().invoke(app, asked).stdout
    assert plan["simulated"] and "s simulated" in said and "times from roofline" in said


def test_a_model_recommends_at_once() -> None:
    asked = ["plan", str(PRESETS / "search-48.yaml"), "--set", "trajectories={preset: search, prompts: 8, group: 4}"]
    said = {}
    for planner in ("search", "libra-published"):
        ran = CliRunner().invoke(app, [*asked, "--set", f"planner={planner}", "--json"])
        assert ran.exit_code == 0, ran.output
        said[planner] = json.loads(ran.stdout)
        assert not said[planner]["simulated"]
    assert said["search"]["model"]["rollout"] > said["libra-published"]["model"]["rollout"], "which divides twice"
    assert "by a model" in CliRunner().invoke(app, [*asked, "--set", "planner=search"]).stdout


def test_a_plan_reckons_with_what_the_scenario_trains() -> None:
    small = {"preset": "search", "prompts": 8, "group": 4}
    steps = []
    for more in ({}, {"reference": "resident"}):
        written = yaml.safe_load((PRESETS / "search-48.yaml").read_text())
        training = {"tp": 4, "dp": 2, "micro_batch_tokens": 16384, **more}
        scenario = posttrain_from_dict({**written, "trajectories": small, "training": training})
        steps.append(Training(set_up_posttrain(scenario), 16))
    plain, judged = steps
    option = next(iter(judged.layouts))
    lengths = np.full(32, 2000)
    assert judged.seconds(option, lengths) > 1.1 * plain.seconds(option, lengths)
