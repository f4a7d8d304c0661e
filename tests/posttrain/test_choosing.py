"""The way that is chosen for an objective."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from steelyard.balance.log import Journal
from steelyard.cli import app
from steelyard.errors import UserError
from steelyard.posttrain import plan, posttrain
from steelyard.posttrain.choosing import CLOSE, STEPS, Tried, choose, try_ways
from steelyard.posttrain.ways import WAYS, written
from steelyard.report.advice import advice_data, print_advice
from steelyard.scenario import posttrain_from_dict
from steelyard.scenario.posttrain import PosttrainScenario

SMALL: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 4},
    "rollout": [{"tp": 1, "replicas": 2}],
    "training": {"dp": 2},
    "steps": 3,
    "seed": 5,
}
LAYOUT = {"rollout": [{"tp": 2, "replicas": 1}], "training": {"dp": 1, "tp": 2}}


def small(**more: Any) -> PosttrainScenario:
    return posttrain_from_dict({**SMALL, **more})


class Told:
    """Stands for runs: speeds by mode and by what else a way sets."""

    def __init__(self, **speeds: tuple[float, float]) -> None:
        self.ran: list[PosttrainScenario] = []
        self._speeds = speeds

    def __call__(self, scenario: PosttrainScenario) -> Mapping[str, Any]:
        self.ran.append(scenario)
        tail = "" if scenario.tail.kind == "none" else "_over"
        tokens, fresh = self._speeds.get(scenario.mode.replace("-", "_") + tail, (1.0, 1.0))
        return {"settled_tokens_per_second": tokens, "effective": {"samples_per_second": fresh}}


def test_each_objective_takes_what_is_best_by_it() -> None:
    told = Told(asynchronous=(9.0, 2.0), one_step_off=(5.0, 4.0))
    tried = try_ways(small(), told)
    assert [each.way for each in tried] == [way.name for way in WAYS]
    found = {objective: choose(small(), objective, tried) for objective in ("throughput", "reward", "cost")}
    assert {name: each.tried[0].way for name, each in found.items()} == {
        "throughput": "asynchronous",
        "reward": "one step off",
        "cost": "one step off",
    }
    assert found["reward"].lead == pytest.approx(1.0) and found["reward"].sure


def test_ways_are_simulated_on_other_trajectories_and_close_ones_twice() -> None:
    told = Told(asynchronous=(9.0, 9.0), one_step_off=(9.0 * (1 - CLOSE / 2), 1.0))
    try_ways(small(), told)
    seeds = [(each.mode, each.tail.kind, each.admission.late, each.seed) for each in told.ran]
    first = [each[:3] for each in seeds if each[3] == 6]
    assert len(first) == len(WAYS) and {each[3] for each in seeds} == {6, 7}
    assert [each[:3] for each in seeds if each[3] == 7] == [
        ("asynchronous", "none", "wait"),
        ("asynchronous", "none", "train"),
        ("one-step-off", "none", "wait"),
    ]
    assert {each.steps for each in told.ran} == {STEPS} and {each.planner for each in told.ran} == {"given"}


def test_ways_on_separate_gpus_share_a_split_and_co_located_ones_have_all() -> None:
    told = Told()
    try_ways(small(), told)
    splits = {each.mode == "colocated": set() for each in told.ran}  # type: ignore[var-annotated]
    for each in told.ran:
        splits[each.mode == "colocated"].add((each.rollout, each.training.gpus))
        assert each.gpus == 4
    assert len(splits[False]) == len(splits[True]) == 1
    assert splits[True].pop()[1] == 4


def test_a_large_batch_is_simulated_in_part_and_its_split_enlarged() -> None:
    large = small(
        trajectories={"preset": "search", "prompts": 256, "group": 16},
        rollout=[{"tp": 1, "replicas": 4}],
        training={"dp": 4},
    )
    told = Told(asynchronous=(9.0, 9.0))
    tried = try_ways(large, told, WAYS[:1])
    (ran,) = told.ran
    assert ran.trajectories.prompts * ran.trajectories.group == 1024 and ran.gpus == 2
    begun = choose(large, "throughput", tried).scenario
    assert begun.gpus == 8 and begun.trajectories.prompts == 256
    assert begun.training.dp == 4 * ran.training.dp
    assert sum(each.replicas for each in begun.rollout) == 4 * sum(each.replicas for each in ran.rollout)


def test_it_begins_with_the_split_of_its_simulation_unless_that_leaves_gpus_unused() -> None:
    tried = [Tried("asynchronous", (1.0,), (1.0,), LAYOUT)]
    begun = choose(small(), "throughput", tried).scenario
    assert begun.rollout[0].tp == 2 and begun.training.tp == 2 and begun.planner == "simulated"
    fewer = [Tried("asynchronous", (1.0,), (1.0,), {**LAYOUT, "training": {"dp": 1}})]
    assert choose(small(), "throughput", fewer).scenario.rollout[0].tp == 1


def test_of_ways_as_good_as_each_other_the_fresher_one_is_taken() -> None:
    tried = [Tried("asynchronous", (100.0,), (1.0,), LAYOUT), Tried("one step off", (99.6,), (2.0,), LAYOUT)]
    assert choose(small(), "throughput", tried).tried[0].way == "one step off"
    worse = [tried[0], Tried("one step off", (99.4,), (2.0,), LAYOUT)]
    assert choose(small(), "throughput", worse).tried[0].way == "asynchronous"


def test_what_a_way_does_not_know_is_left_out() -> None:
    """Several updates a step cannot be streamed, and shared GPUs have no time in which training waits."""
    training = {**SMALL["training"], "generates": True, "minibatches": 2}
    ahead, _, _, shared, *_ = (written(small(mode="asynchronous", training=training), way) for way in WAYS)
    assert ahead.training.generates and not ahead.streaming
    assert shared.mode == "colocated" and not shared.training.generates


def test_a_lead_that_another_seed_turns_round_is_not_sure() -> None:
    tried = [Tried("asynchronous", (3.0, 1.0), (), LAYOUT), Tried("one step off", (1.0, 2.0), (), LAYOUT)]
    found = choose(small(), "reward", tried)
    assert found.tried[0].way == "asynchronous" and not found.sure, "without learning, tokens are all there is"
    assert found.as_dict()["lead"] == pytest.approx(1 / 3)


def test_staleness_is_the_most_that_is_allowed() -> None:
    told = Told()
    tried = try_ways(small(mode="asynchronous", staleness=1), told)
    refused = {each.way: each.refused for each in tried if each.refused}
    assert set(refused) == {way.name for way in WAYS if way.staleness == 2}
    assert "has samples of 2 versions; 1 are allowed" in refused["asynchronous"]
    assert max(each.staleness_bound for each in told.ran) == 1
    wide = written(small(mode="asynchronous", staleness=4), WAYS[0])
    assert wide.staleness_bound == 4


def test_where_no_way_can_be_run_it_is_said_why() -> None:
    def refuse(scenario: PosttrainScenario) -> Mapping[str, Any]:
        raise UserError("no room")

    with pytest.raises(UserError, match="asynchronous: no room"):
        try_ways(small(), refuse)


def test_a_run_with_an_objective_is_the_run_of_its_choice() -> None:
    result = posttrain(small(objective="reward"))
    chosen = result.summary["chosen"]
    assert chosen["objective"] == "reward" and result.scenario.objective is None
    way = next(way for way in WAYS if way.name == chosen["way"])
    assert result.summary["mode"] == way.mode == result.scenario.mode
    again = posttrain(result.scenario).summary
    assert {**again, "chosen": chosen} == result.summary
    best = max(chosen["ways"], key=lambda each: sum(each["fresh"]) / len(each["fresh"]))
    assert best["way"] == chosen["way"]


def test_plan_says_which_way_and_its_yaml_runs_it() -> None:
    advice = plan(small(objective="reward"), draws=0)
    assert advice.chosen is not None
    way = next(way for way in WAYS if way.name == advice.chosen.tried[0].way)
    pasted = posttrain_from_dict({**SMALL, **yaml.safe_load(advice_data(advice)["yaml"])})
    assert (pasted.mode, pasted.gpus, pasted.rollout) == (way.mode, 4, advice.scenario.rollout)
    console = Console(record=True, file=StringIO(), width=200)
    print_advice(advice, console)
    told = console.export_text()
    assert f"{way.name}, for reward" in told and told.count("samples/s as if fresh") == len(WAYS)


@pytest.mark.parametrize(
    "words", [("control",), ("emit", "--to", "verl"), ("replay", "events.jsonl", "--what-if", "router=sticky")]
)
def test_what_runs_a_scenario_as_written_does_not_choose(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(yaml.safe_dump({**SMALL, "objective": "reward"}))
    with Path("events.jsonl").open("w") as file:
        posttrain(small(steps=1), journal=Journal(file))
    scenario = ["--scenario", "s.yaml"] if words[0] == "replay" else ["s.yaml"]
    ran = CliRunner().invoke(app, [words[0], *words[1:], *scenario])
    assert isinstance(ran.exception, UserError) and "objective" in str(ran.exception)


def test_reward_cannot_be_sought_without_a_learning_model() -> None:
    with pytest.raises(UserError, match=r"objective: reward: needs trajectories\.learning"):
        small(
            trajectories={"preset": "search", "prompts": 4, "group": 4, "learning": None, "drift": None},
            objective="reward",
        )
