"""Comparing ways to run post-training: who is compared, that nothing is run twice, and what is said of it."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from steelyard.cli import app
from steelyard.errors import UserError
from steelyard.posttrain import compare as module
from steelyard.posttrain.compare import compare, digest_of, figures_of
from steelyard.posttrain.compare_cases import Cases, colocated
from steelyard.posttrain.compare_choices import BOUNDS, OURS, RIVALS, Choice, Contender, contenders
from steelyard.posttrain.compare_outcomes import JUDGED_BY, Comparison, Outcome
from steelyard.posttrain.compare_results import NUMBERS, CompareResults
from steelyard.posttrain.part import scaled, shares
from steelyard.report.compare import comparison_page, verdict
from steelyard.report.compare_figure import comparison_svg
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


def test_everything_that_a_scenario_knows_is_tried_and_nothing_twice() -> None:
    found = contenders({}, full=False, rivals=True)
    assert found[0].choice == OURS and [each.name for each in found[1:4]] == [
        "oracle",
        "oracle, fixed split",
        "static best",
    ]
    assert len({each.choice for each in found}) == len(found) == len({each.name for each in found})
    assert {each.choice.router for each in found} == set(get_args(RouterName))
    assert {each.choice.planner for each in found} == set(get_args(PlannerName))
    assert {each.choice.mode for each in found} == set(get_args(Mode))


def test_changes_are_of_one_thing_unless_two_cannot_go_together() -> None:
    ours = asdict(OURS)
    for each in contenders({}, full=False, rivals=False):
        changed = {name for name, value in asdict(each.choice).items() if value != ours[name]}
        if each.kind == "change" and not changed & {"mode"}:
            assert len(changed) == 1 and each.name.startswith(changed.pop())


def test_the_product_has_all_pairs() -> None:
    limits = {"mode": ["split", "asynchronous"], "router": ["sticky", "heddle"], "planner": ["given"], "tail": ["none"]}
    found = [each for each in contenders(limits, full=True, rivals=False) if each.kind == "change"]
    assert {(each.choice.mode, each.choice.router) for each in found} == {
        (mode, router) for mode in limits["mode"] for router in limits["router"]
    }


@pytest.mark.parametrize("who", [*BOUNDS, *RIVALS, Contender("ours", "ours", OURS)], ids=lambda who: who.name)
def test_every_named_contender_is_what_its_name_says(who: Contender) -> None:
    assert who.choice == who.choice.coherent, "it would run as something else than its name says"
    scenario = Cases(tiny()).of(who.choice)
    assert scenario.gpus == 8
    assert {name: scenario.model_dump()[name] for name in ("mode", "router", "planner", "pool", "streaming")} == {
        name: asdict(who.choice)[name] for name in ("mode", "router", "planner", "pool", "streaming")
    }
    assert scenario.tail.kind == who.choice.tail


def test_colocated_stages_have_all_gpus_and_a_layout_that_divides_the_batch() -> None:
    scenario = tiny(rollout=[{"tp": 2, "replicas": 4}])  # 12 GPUs, of which no power of two makes all
    shared = colocated(scenario)
    assert shared.training.gpus == shared.rollout_gpus == scenario.gpus == 12
    assert 16 % shared.training.dp == 0


def test_a_part_of_a_scenario_has_a_part_of_everything() -> None:
    scenario = load_posttrain(PRESETS / "search-48.yaml")
    half = scaled(scenario, 0.5)
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
    assert (first.ran, second.ran, told) == (["asynchronous"], ["split"], [(2, 2)])
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
    assert Cases(tiny()).of(synchronous).staleness_bound == 1  # what is carried over must be


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


# -- what is said of it -----------------------------------------------------------------------------------------------


def outcome(name: str, *tokens: float, **choice: Any) -> Outcome:
    kind: Any = {"ours": "ours", "oracle": "bound", "static best": "bound", "A": "rival"}.get(name, "change")
    figures = {
        "samples_per_second": 1.5,
        "step_seconds": 12.0,
        "rollout_idle": 0.25,
        "training_idle": 0.5,
        "staleness": 0.75,
        "given_up": 0.02,
        "time_to_reward": {"reward": 0.4, "seconds": 1234.0, "reached": False},
    }
    runs = [{"tokens_per_second": each, JUDGED_BY: each, **figures} for each in tokens]
    return Outcome(Contender(name, kind, Choice(**choice)), runs)


def some(*more: Outcome) -> Comparison:
    bounds = [outcome("oracle", 1000.0, planner="oracle"), outcome("static best", 880.0, planner="static-best")]
    rival = outcome("A", 440.0, router="sticky")
    return Comparison(tiny(), [outcome("ours", 880.0), *bounds, rival, *more])


def test_the_verdict_counts_nobody_who_knows_lengths() -> None:
    said = " ".join(
        verdict(
            some(outcome("estimator oracle", 990.0, estimator="oracle"), outcome("b", 985.0, planner="static-best"))
        )
    )
    assert "Ours reaches 88.0% of oracle, 100.0% of static best." in said
    assert "Ours is the best" in said and "A 2.00x" in said
    level = [outcome(name, tokens, router="heddle") for name, tokens in (("b", 880.4), ("c", 879.6), ("d", 870.0))]
    assert "in advance, even with b, c." in " ".join(verdict(some(*level)))
    beaten = " ".join(verdict(some(outcome("router heddle", 924.0, router="heddle"))))
    assert "router heddle, +5.0% against ours" in beaten


def test_seeds_are_compared_pair_by_pair_and_a_lead_that_changes_sides_is_none() -> None:
    bounds = [outcome("oracle", 200.0, 400.0, planner="oracle"), outcome("static best", 150.0, 150.0)]
    rival = outcome("A", 50.0, router="sticky")
    found = Comparison(tiny(), [outcome("ours", 100.0, 300.0), *bounds, rival])
    said = " ".join(verdict(found))
    assert "Ours reaches 66.7% of oracle, 133.3% of static best." in said and "A 2.00x" in said
    even = outcome("b", 140.0, 250.0, router="heddle")
    said = " ".join(verdict(Comparison(tiny(), [*found.outcomes, even])))
    assert "+2.6% against the next, b, ahead with 1 of 2 seeds, so the two are even" in said
    page = comparison_page([found], "steelyard compare tiny.yaml", "images")
    assert "Provisional" in page.split("Made by")[0]
    assert "| ours | 200 | 200 | 2, ±50.0% |" in page


def test_only_who_comes_close_is_run_with_further_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"c-mlfq": 95.0, "heddle": 80.0, "cost-aware": 100.0}
    ran: list[tuple[str, int]] = []

    def fake(scenario: PosttrainScenario) -> dict[str, Any]:
        ran.append((scenario.router, scenario.seed))
        return {JUDGED_BY: speeds[scenario.router] * scenario.seed}

    monkeypatch.setattr(module, "figures_of", fake)
    those = [
        Contender("ours", "ours", Choice()),
        Contender("close", "change", Choice(router="c-mlfq")),
        Contender("far", "change", Choice(router="heddle")),
    ]
    (found,) = compare([tiny(seed=1)], those, tmp_path, seeds=3)
    assert ran == [
        *(("cost-aware", 1), ("c-mlfq", 1), ("heddle", 1)),
        *(("cost-aware", 2), ("cost-aware", 3), ("c-mlfq", 2), ("c-mlfq", 3)),
    ]
    assert [each.throughput for each in found.outcomes] == [200.0, 190.0, 80.0]
    assert found.find("far").of(found.find("ours")) == 0.8  # with the seed that both were run with


def test_there_is_a_verdict_where_nothing_else_could_be_run() -> None:
    found = Comparison(tiny(), [outcome("ours", 880.0), Outcome(Contender("A", "rival", OURS), (), "does not fit")])
    assert list(verdict(found)) == ["Ours is the best of all that know no lengths in advance: no other was run."]


def test_the_page_and_the_figure_have_every_figure_that_was_run() -> None:
    found = some(Outcome(Contender("c", "change", OURS), (), "tiny: it does not fit"))
    page = comparison_page([found], "steelyard compare tiny.yaml", "images/comparison")
    assert "| A | 440 | 440 | 1.50 | 12.0 | 25% | 50% | 0.75 | 2.0% | 50.0% | 44.0% | ~1,234 |" in page
    assert "Not run: c: tiny: it does not fit" in page and "(images/comparison/tiny.svg)" in page
    svg = comparison_svg(found)
    bars = [line for line in svg.splitlines() if 'rx="2"' in line and 'height="14"' in line]
    widths = [float(line.split('width="')[1].split('"')[0]) for line in bars]
    assert widths == [520.0, pytest.approx(457.6), pytest.approx(457.6), pytest.approx(228.8)]


def test_the_command_prints_what_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(WRITTEN))
    asked = ["compare", str(path), "--out", str(tmp_path / "kept"), "--no-rivals", "--steps", "1"]
    for dimension in ("modes", "estimators", "planners", "tails", "pools"):
        ours = asdict(OURS)[dimension.removesuffix("s")]
        asked += [f"--{dimension}", ours]
    asked += ["--routers", "sticky", "--page", str(tmp_path / "docs" / "comparison.md")]
    ran = CliRunner().invoke(app, [*asked, "--json"])
    assert ran.exit_code == 0, ran.output
    (found,) = json.loads(ran.stdout)
    names = [each["name"] for each in found["outcomes"]]
    assert names == [
        "ours",
        "oracle",
        "oracle, fixed split",
        "static best",
        "router sticky",
        "streaming false",
        "weighed false",
    ]
    page = (tmp_path / "docs" / "comparison.md").read_text()
    assert json.loads((tmp_path / "docs" / "comparison.json").read_text()) == [found]
    for each in found["outcomes"]:
        star = " *" if "oracle" in each["name"] else ""  # they are told lengths in advance
        assert f"| {each['name']}{star} | {each['figures']['tokens_per_second']:,.0f} |" in page
    assert (tmp_path / "docs" / "images" / "comparison" / "tiny.svg").read_text().startswith("<svg")
    again = CliRunner().invoke(app, asked)
    assert again.exit_code == 0 and "of static best" in again.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--routers", "stiky"], "--routers: 'stiky' is none; did you mean 'sticky'"),
        (["--scale", "0.3"], "cannot be run at a scale of 0.3: 8 engines of TP1 would be 2.4"),
    ],
)
def test_mistakes_are_named_before_anything_is_run(tmp_path: Path, more: list[str], said: str) -> None:
    ran = CliRunner().invoke(app, ["compare", str(PRESETS / "search-48.yaml"), "--out", str(tmp_path / "x"), *more])
    assert isinstance(ran.exception, UserError) and said in str(ran.exception)
    assert not (tmp_path / "x").exists()
