"""Comparing ways to run post-training: who is compared, that nothing is run twice, and what is said of it."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import pytest

from steelyard.errors import UserError
from steelyard.posttrain import compare_runs as module
from steelyard.posttrain.choosing import Tried
from steelyard.posttrain.colocated import colocated
from steelyard.posttrain.compare import compare
from steelyard.posttrain.compare_cases import Cases
from steelyard.posttrain.compare_choices import (
    BOUNDS,
    DIMENSIONS,
    OUR_POLICIES,
    OURS,
    RIVALS,
    Choice,
    Contender,
    contenders,
)
from steelyard.posttrain.compare_outcomes import JUDGED_BY
from steelyard.posttrain.compare_plans import of_its_kind, with_plan
from steelyard.posttrain.compare_results import NUMBERS, CompareResults
from steelyard.posttrain.compare_runs import digest_of, figures_of
from steelyard.posttrain.compare_tuning import TRIAL_STEPS
from steelyard.posttrain.part import scaled, shares
from steelyard.scenario import load_posttrain, posttrain_from_dict
from steelyard.scenario.posttrain import Mode, PlannerName, PosttrainScenario, RouterName
from support.paths import EXAMPLES

PRESETS = EXAMPLES / "posttrain"
WRITTEN: dict[str, Any] = {
    "name": "tiny",
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 4},
    "rollout": [{"tp": 1, "replicas": 2}, {"tp": 2, "replicas": 1}],
    "training": {"dp": 4},
    "steps": 2,
}


def tiny(**more: Any) -> PosttrainScenario:
    return posttrain_from_dict({**WRITTEN, **more})


# -- who is compared --------------------------------------------------------------------------------------------------


def test_everything_that_a_scenario_knows_can_be_tried_and_nothing_twice() -> None:
    found = contenders(DIMENSIONS, full=False, rivals=True)
    assert found[:5] == [*OURS, *BOUNDS]
    assert len(found) == len({each.name for each in found})
    others = [each.choice for each in found if each.kind != "rival"]
    assert len(set(others)) == len(others)
    assert not {*others} & {each.choice for each in RIVALS}
    assert {each.choice.router for each in found} == set(get_args(RouterName))
    assert {each.choice.planner for each in found} == set(get_args(PlannerName))
    assert {each.choice.mode for each in found} == set(get_args(Mode))


def test_nothing_is_changed_that_was_not_asked_for() -> None:
    assert contenders({}, full=False, rivals=False) == [*OURS, *BOUNDS]
    asked = contenders({"router": ["sticky"]}, full=False, rivals=False)[5:]
    assert [each.name for each in asked] == ["our policies", "router sticky"]


def test_changes_are_of_one_thing_unless_two_cannot_go_together() -> None:
    ours = asdict(OUR_POLICIES)
    for each in contenders(DIMENSIONS, full=False, rivals=False):
        changed = {name for name, value in asdict(each.choice).items() if value != ours[name]}
        if each.kind == "change" and changed and not changed & {"mode"}:
            assert len(changed) == 1 and each.name.startswith(changed.pop())


def test_the_product_has_all_pairs() -> None:
    limits = {"mode": ["split", "asynchronous"], "router": ["sticky", "heddle"], "planner": ["given"], "tail": ["none"]}
    found = [each for each in contenders(limits, full=True, rivals=False) if each.kind == "change"]
    assert {(each.choice.mode, each.choice.router) for each in found} == {
        (mode, router) for mode in limits["mode"] for router in limits["router"]
    }


@pytest.mark.parametrize(
    "who", [*BOUNDS, *RIVALS, Contender("our policies", "change", OUR_POLICIES)], ids=lambda who: who.name
)
def test_every_named_contender_is_what_its_name_says(who: Contender) -> None:
    assert who.choice == who.choice.coherent, "it would run as something else than its name says"
    scenario = Cases(tiny()).of(who.choice)
    assert scenario.gpus == 8
    assert {name: scenario.model_dump()[name] for name in ("mode", "router", "planner", "pool", "streaming")} == {
        name: asdict(who.choice)[name] for name in ("mode", "router", "planner", "pool", "streaming")
    }
    assert scenario.tail.kind == who.choice.tail
    for key, value in who.choice.settings:
        found: Any = scenario.model_dump()
        for part in key.split("."):
            found = found[part]
        assert found == value
    batches, at_once = who.choice.concurrency, scenario.admission.concurrency
    assert scenario.admission.late == who.choice.late
    assert at_once == (None if batches is None else batches * 16)  # samples of a batch


@pytest.mark.parametrize("who", OURS, ids=lambda who: who.name)
def test_ours_is_what_an_objective_chooses(who: Contender) -> None:
    assert Cases(tiny()).of(who.choice) == tiny(objective=who.choice.objective)
    chosen_elsewhere = tiny(objective="cost")
    assert Cases(chosen_elsewhere).of(OUR_POLICIES).objective is None, "others are run as they are"


def test_colocated_stages_have_all_gpus_and_a_layout_that_divides_the_batch() -> None:
    scenario = tiny(rollout=[{"tp": 2, "replicas": 4}])  # 12 GPUs, of which no power of two makes all
    shared = colocated(scenario)
    assert shared.training.gpus == shared.rollout_gpus == scenario.gpus == 12
    assert 16 % shared.training.dp == 0


def test_a_part_of_a_scenario_has_a_part_of_everything() -> None:
    scenario = load_posttrain(PRESETS / "search-48.yaml")
    half = scaled(scenario, 0.5)
    ahead = scenario.replace(mode="asynchronous", admission={"concurrency": 2048})
    assert scaled(ahead, 0.5).admission.concurrency == 1024
    assert (half.gpus, half.rollout_gpus, half.trajectories.prompts) == (24, 16, 128)
    assert scaled(scenario, 1.0) == scenario
    with pytest.raises(UserError, match=r"search-48.yaml: cannot be run at a scale of 0.125: 4 engines of TP2"):
        scaled(scenario, 0.125)


# -- results that are kept --------------------------------------------------------------------------------------------

FEW = [Contender("ours", "ours", Choice(planner="given")), Contender("b", "change", Choice("split", planner="given"))]


class Counted:
    """Stands for running; fails at the given call."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.ran: list[str] = []
        self._fails_at = fails_at

    def __call__(self, scenario: PosttrainScenario) -> dict[str, Any]:
        if len(self.ran) == self._fails_at:
            raise KeyboardInterrupt
        self.ran.append(scenario.mode)
        return {**dict.fromkeys(NUMBERS, 0.0), "tokens_per_second": float(len(self.ran)), JUDGED_BY: 1.0}


def test_an_interrupted_comparison_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = Counted(fails_at=1), Counted(), Counted()
    monkeypatch.setattr(module, "figures_of", first)
    few = [contender for contender in FEW if contender.choice.coherent == contender.choice]
    with pytest.raises(KeyboardInterrupt):
        compare([tiny()], few, tmp_path)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"digest": "cut o')
    monkeypatch.setattr(module, "figures_of", second)
    told: list[tuple[int, int]] = []
    (found,) = compare([tiny()], few, tmp_path, progress=lambda done, total: told.append((done, total)))
    assert (first.ran, second.ran, told) == (["asynchronous"], ["split"], [(1, 1), (2, 2)][1:])
    assert [each.figures["tokens_per_second"] for each in found.outcomes] == [1.0, 1.0]
    monkeypatch.setattr(module, "figures_of", third)
    compare([tiny()], few, tmp_path)
    assert third.ran == []
    compare([tiny(seed=3)], few, tmp_path)
    assert third.ran == ["asynchronous", "split"]


GOOD: dict[str, Any] = {"digest": "0" * 24, **dict.fromkeys(NUMBERS, 1.0), "time_to_reward": None}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "not valid JSON"),
        ("[]", "must be a JSON object"),
        (json.dumps({**GOOD, "digest": 3}), "digest: must be text"),
        (json.dumps({**GOOD, JUDGED_BY: "fast"}), f"{JUDGED_BY}: must be a number"),
        (json.dumps({**GOOD, "staleness": None}), "staleness: must be a number"),
        (json.dumps({**GOOD, "given_up": float("nan")}), "given_up: must be a number"),
        (json.dumps({**GOOD, "time_to_reward": 3}), "time_to_reward: must have"),
        (
            json.dumps({name: value for name, value in GOOD.items() if name != "step_seconds"}),
            "step_seconds is missing",
        ),
    ],
)
def test_results_that_were_tampered_with_are_refused(tmp_path: Path, line: str, told: str) -> None:
    (tmp_path / "results.jsonl").write_text(f"{json.dumps(GOOD)}\n{line}\n")
    with pytest.raises(UserError, match=rf"results.jsonl:2: {told}"):
        CompareResults(tmp_path)


def test_a_refused_comparison_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is run first, and only figures are kept: no folder stays that has nothing in it."""
    monkeypatch.setattr(module, "figures_of", lambda scenario: {"refused": f"{scenario.mode}: no room"})
    with pytest.raises(UserError, match="asynchronous: no room"):
        compare([tiny()], FEW, tmp_path / "deep" / "results")
    assert list(tmp_path.iterdir()) == []


def test_one_comparison_at_a_time_adds_to_a_folder(tmp_path: Path) -> None:
    with closing(CompareResults(tmp_path)), pytest.raises(UserError, match="another run is writing to it"):
        CompareResults(tmp_path)


def test_several_at_a_time_give_what_one_by_one_gives(tmp_path: Path) -> None:
    scenarios = [tiny(), tiny(seed=2)]
    alone, together = (compare(scenarios, FEW, tmp_path / str(workers), workers) for workers in (1, 2))
    assert [each.as_dict() for each in alone] == [each.as_dict() for each in together]
    figures = alone[0].find("ours").figures
    assert figures == {"seeds": 1, "spread": 0.0} | figures_of(Cases(tiny()).of(FEW[0].choice))
    assert figures["staleness"] > alone[0].find("b").figures["staleness"] == 0
    assert figures["time_to_reward"]["seconds"] > 0


def test_what_cannot_be_run_is_said_and_the_rest_is(tmp_path: Path) -> None:
    broken = [*FEW, Contender("c", "change", Choice("colocated", streaming=True, planner="given"))]
    (found,) = compare([tiny()], broken, tmp_path)
    assert "streaming" in found.find("c").refused and found.find("b").figures


def test_where_ours_cannot_be_run_nothing_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted()
    monkeypatch.setattr(module, "figures_of", counted)
    refused = Contender("ours", "ours", Choice("colocated", streaming=True, planner="given"))
    with pytest.raises(UserError, match="streaming"):
        compare([tiny()], [refused, FEW[1]], tmp_path, seeds=3)
    assert counted.ran == []


def test_ways_are_tried_once_for_both_objectives_and_each_chooses_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []
    layout = {"rollout": [{"tp": 1, "replicas": 4}], "training": {"dp": 4}}

    def ways(scenario: PosttrainScenario, simulate: object) -> tuple[Tried, ...]:
        tried.append(scenario.seed)
        return Tried("asynchronous", (2.0,), (1.0,), layout), Tried("one step off", (1.0,), (2.0,), layout)

    counted = Counted()
    monkeypatch.setattr(module, "try_ways", ways)
    monkeypatch.setattr(module, "figures_of", counted)
    (found,) = compare([tiny(steps=30)], OURS, tmp_path)
    assert tried == [0] and counted.ran == ["asynchronous", "one-step-off"]
    assert [each.figures["way"] for each in found.outcomes] == ["asynchronous", "one step off"]
    compare([tiny(steps=40)], OURS, tmp_path)
    assert tried == [0], "their number of steps is their own"


def test_one_search_finds_the_splits_of_all_ways_of_a_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And each is run with the split that was better in its own short runs, on the trajectories of another seed."""
    searched: list[PosttrainScenario] = []
    ran: list[tuple[str, int, int, int]] = []

    def search(scenario: PosttrainScenario) -> dict[str, Any]:
        searched.append(scenario)
        splits = (4, 2)
        return {"plans": [{"rollout": [{"tp": 1, "replicas": 8 - dp}], "training": {"dp": dp}} for dp in splits]}

    def fake(scenario: PosttrainScenario) -> dict[str, Any]:
        ran.append((scenario.router, scenario.seed, scenario.steps, scenario.training.dp))
        better = {"sticky": 2, "prefix-aware": 4}.get(scenario.router)
        return {**dict.fromkeys(NUMBERS, 0.0), JUDGED_BY: 2.0 if scenario.training.dp == better else 1.0}

    monkeypatch.setattr(module, "plans_of", search)
    monkeypatch.setattr(module, "figures_of", fake)
    choice = Choice("asynchronous", "sticky", "blind", "static-best", streaming=False)
    those = [
        FEW[0],
        *(Contender(router, "rival", replace(choice, router=router)) for router in ("sticky", "prefix-aware")),
    ]
    compare([tiny(steps=30, seed=1)], those, tmp_path)
    assert [each.router for each in searched] == ["sticky"]
    whole = {(router, dp) for router, _, steps, dp in ran if steps == 30}
    assert whole == {("cost-aware", 4), ("sticky", 2), ("prefix-aware", 4)}
    assert {(seed, steps) for _, seed, steps, _ in ran} == {(1, 30), (101, TRIAL_STEPS)}


def test_a_kind_keeps_what_decides_a_split_and_a_split_keeps_what_does_not() -> None:
    scenario = tiny(
        mode="asynchronous",
        planner="static-best",
        router="prefix-aware",
        admission={"late": "train"},
        training={"dp": 4, "weighed": True, "generates": True, "packing": "best-fit"},
    )
    kind = of_its_kind(scenario)
    assert (kind.mode, kind.staleness_bound, kind.training.weighed) == ("asynchronous", 2, True)
    assert (kind.router, kind.admission.late, kind.training.packing) == ("sticky", "wait", "balanced")
    ranking = tiny(planner="static-best", router="heddle", estimator="oracle")
    assert (of_its_kind(ranking).router, of_its_kind(ranking).estimator) == ("heddle", "oracle")
    planned = with_plan(scenario, {"rollout": [{"tp": 2, "replicas": 3}], "training": {"tp": 2}})
    assert (planned.planner, planned.rollout[0].tp, planned.training.tp, planned.training.dp) == ("given", 2, 2, 1)
    assert planned.training.generates and planned.training.weighed and planned.training.packing == "best-fit"


def test_a_scale_is_for_all_or_one_for_each() -> None:
    assert shares("0.5", 3) == [0.5] * 3 and shares("1,0.25", 2) == [1.0, 0.25] and shares("1", 1) == [1.0]
    for wrong in ("0.5,0.5", "half", "0", "1.5", "0.5,,1"):
        with pytest.raises(UserError, match="--scale"):
            shares(wrong, 3)


def test_all_who_are_asynchronous_have_the_same_bound_on_staleness() -> None:
    for scenario, bound in ((tiny(), 2), (tiny(mode="asynchronous", staleness=4), 4)):
        cases = Cases(scenario)
        assert {cases.of(Choice(tail=tail)).staleness_bound for tail in ("none", "over-sampling", "partial")} == {bound}
    synchronous = Choice("split", streaming=False, tail="over-sampling")
    assert Cases(tiny()).of(synchronous).staleness_bound == 2  # those who carry over may do so as long
    assert Cases(tiny()).of(replace(synchronous, tail="none")).staleness_bound == 0


def test_a_result_is_of_the_files_that_its_scenario_names(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    scenario = tiny(model=str(config))
    before = digest_of(scenario)
    assert digest_of(scenario) == before != digest_of(tiny())
    config.write_text("{ }")
    assert digest_of(scenario) != before


def test_the_best_fixed_split_is_no_worse_over_the_run_than_the_one_written() -> None:
    choices = [Choice(planner=planner, streaming=False) for planner in ("static-best", "given")]
    scenario = tiny(steps=8, rollout=[{"tp": 1, "replicas": 6}])
    best, given = (figures_of(Cases(scenario).of(each))["settled_tokens_per_second"] for each in choices)
    assert best > given
