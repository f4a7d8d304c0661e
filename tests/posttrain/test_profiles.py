"""Profiles of other systems: complete, with sources, tuned within bounds, and as the page says."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from steelyard.posttrain import compare_runs as module
from steelyard.posttrain.compare import compare
from steelyard.posttrain.compare_cases import Cases
from steelyard.posttrain.compare_choices import OUR_POLICIES, RIVALS, Choice, Contender
from steelyard.posttrain.compare_outcomes import JUDGED_BY
from steelyard.posttrain.compare_profiles import MOST_TRIALS, POLICIES, Profile, combinations
from steelyard.posttrain.compare_results import NUMBERS
from steelyard.posttrain.compare_rivals import PROFILES
from steelyard.posttrain.compare_tuning import TRIAL_STEPS
from steelyard.report.compare import comparison_page
from steelyard.report.rivals import rivals_page
from steelyard.scenario import posttrain_from_dict
from steelyard.scenario.posttrain import PosttrainScenario

ROOT = Path(__file__).parents[2]
SYSTEMS = (
    *("verl, co-located", "verl, one step off", "verl, fully asynchronous", "BiDiRL", "slime", "miles", "AReaL"),
    *("SkyRL", "ROLL Flash", "StreamRL", "Laminar", "DynaRL", "Heddle", "RollPacker", "Seer", "APRIL", "Kimi partial"),
    *("Libra", "Libra, cost corrected", "Libra, no planner", "Libra, no planner, no pool", "Libra, no C-MLFQ"),
)


def tiny(**more: Any) -> PosttrainScenario:
    return posttrain_from_dict(
        {
            "name": "tiny",
            "model": "qwen2.5-0.5b",
            "gpu": "a800",
            "trajectories": {"preset": "search", "prompts": 4, "group": 4},
            "rollout": [{"tp": 1, "replicas": 2}, {"tp": 2, "replicas": 1}],
            "training": {"dp": 4},
            "steps": 2,
            **more,
        }
    )


@cache
def cases() -> Cases:
    """The co-located layout is searched once."""
    return Cases(tiny())


def test_every_system_has_one_profile() -> None:
    assert sorted(profile.name for profile in PROFILES) == sorted(SYSTEMS)


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_profile_says_everything_and_from_where(profile: Profile) -> None:
    assert set(POLICIES) <= set(profile.settings)
    assert profile.claim and all(setting.values and setting.source for setting in profile.settings.values())
    sources = " ".join(setting.source for setting in profile.settings.values())
    assert re.search(r"github\.com/[^/]+/[^/]+/(blob/[0-9a-f]{40}|issues)/|arxiv\.org/abs/\d{4}\.\d{5}", sources)
    assert profile.trials <= MOST_TRIALS


@pytest.mark.parametrize("who", RIVALS, ids=lambda who: who.name)
def test_all_values_that_are_tuned_can_be_run_and_none_is_tried_in_vain(who: Contender) -> None:
    made = [cases().of(who.tuned(values).choice) for values in combinations(who.open)]
    assert len({each.model_dump_json() for each in made}) == len(made)
    assert who.tuned(combinations(who.open)[0]).choice == who.choice, "the first values are those it has untuned"


@pytest.mark.parametrize("who", RIVALS, ids=lambda who: who.name)
def test_synchronous_systems_share_all_gpus_and_others_have_one_bound(who: Contender) -> None:
    scenario = cases().of(who.choice)
    if scenario.synchronous:
        assert scenario.mode == "colocated" and scenario.training.gpus == scenario.rollout_gpus == 8
        assert scenario.staleness_bound == (2 if scenario.tail.carried else 0)
    else:
        assert scenario.staleness_bound == (1 if scenario.mode == "one-step-off" else 2)


PARTIAL = Choice("colocated", "sticky", "blind", "given", "partial", streaming=False)
FIRST = Contender("ours", "ours", OUR_POLICIES)


def figures(tokens: float, reward: float = 1000.0) -> dict[str, Any]:
    return {
        **dict.fromkeys(NUMBERS, 0.0),
        JUDGED_BY: tokens,
        "time_to_reward": {"reward": 0.4, "seconds": reward, "reached": False, "usd_per_point": 1.0, "penalty": {}},
    }


def test_what_is_open_is_tuned_by_short_runs_for_each_scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the trajectories of other seeds than those it is judged by."""
    ran: list[tuple[int, int, Any]] = []

    def fake(scenario: PosttrainScenario) -> dict[str, Any]:
        budget = getattr(scenario.tail, "budget", None)
        ran.append((scenario.seed, scenario.steps, budget))
        best = {1: 8192, 2: 4096}[scenario.seed % 100]
        return figures(2.0 if budget == best else 1.0, 500.0 if budget == best else 1000.0)

    monkeypatch.setattr(module, "figures_of", fake)
    rival = Contender("r", "rival", PARTIAL, open=(("tail.budget", (4096, 8192)),))
    scenarios = [tiny(seed=1, steps=30), tiny(seed=2, steps=30)]
    found = compare(scenarios, [FIRST, rival], tmp_path)
    assert [each.find("r").contender.found for each in found] == [(("tail.budget", 8192),), (("tail.budget", 4096),)]
    assert sorted(each for each in ran if each[1] == TRIAL_STEPS) == [
        (seed, TRIAL_STEPS, budget) for seed in (101, 102) for budget in (4096, 8192)
    ]
    assert sorted(each for each in ran if each[1] == 30 and each[2]) == [(1, 30, 8192), (2, 30, 4096)]
    page = comparison_page(found, "steelyard compare", "images", "a test")
    assert "Tuned: r `tail.budget` 8192" in page
    ran.clear()
    compare(scenarios, [FIRST, rival], tmp_path)
    assert not ran, "trials are kept like other results"


def test_what_is_best_for_reward_has_a_row_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(scenario: PosttrainScenario) -> dict[str, Any]:
        many = getattr(scenario.tail, "budget", None) == 8192
        return figures(2.0, 900.0) if many else figures(1.0, 500.0)

    monkeypatch.setattr(module, "figures_of", fake)
    rival = Contender("r", "rival", PARTIAL, open=(("tail.budget", (4096, 8192)),))
    (found,) = compare([tiny(steps=30)], [FIRST, rival], tmp_path)
    tuned = {each.contender.name: each.contender.found for each in found.outcomes[1:]}
    assert tuned == {"r": (("tail.budget", 8192),), "r, for reward": (("tail.budget", 4096),)}
    assert found.find("r, for reward").contender.kind == "rival"


def test_values_that_cannot_be_run_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(scenario: PosttrainScenario) -> dict[str, Any]:
        return {"refused": "no room"} if getattr(scenario.tail, "budget", None) == 4096 else figures(1.0)

    monkeypatch.setattr(module, "figures_of", fake)
    rival = Contender("r", "rival", PARTIAL, open=(("tail.budget", (4096, -1, 8192)),))
    (found,) = compare([tiny(steps=1)], [FIRST, rival], tmp_path)
    assert found.find("r").contender.found == (("tail.budget", 8192),)


def test_the_page_about_other_systems_is_up_to_date() -> None:
    assert (ROOT / "docs" / "rivals.md").read_text() == rivals_page(), "run python -m tools.rivals_page docs/rivals.md"
