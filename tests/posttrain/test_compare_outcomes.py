"""What is said of a comparison: who is first by each measure, how sure that is, and the page."""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from steelyard.cli import app
from steelyard.errors import UserError
from steelyard.posttrain import compare_runs as module
from steelyard.posttrain.compare import compare
from steelyard.posttrain.compare_choices import OURS, Choice, Contender
from steelyard.posttrain.compare_outcomes import (
    COST,
    JUDGED_BY,
    REWARD,
    SAMPLES,
    THROUGHPUT,
    Comparison,
    Outcome,
    SpeedRatio,
)
from steelyard.report.compare import comparison_page
from steelyard.report.compare_figure import comparison_svg
from steelyard.report.compare_standing import standing, verdict
from steelyard.scenario import posttrain_from_dict
from steelyard.scenario.posttrain import PosttrainScenario
from support.paths import EXAMPLES

PRESETS = EXAMPLES / "posttrain"
WRITTEN: dict[str, Any] = {
    "name": "tiny",
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 4},
    "rollout": [{"tp": 1, "replicas": 2}, {"tp": 2, "replicas": 1}],
    "training": {"dp": 4},
    "steps": 15,
}


def tiny(**more: Any) -> PosttrainScenario:
    return posttrain_from_dict({**WRITTEN, **more})


def outcome(name: str, *tokens: float, reward: float = 1000.0, kind: Any = "rival", **choice: Any) -> Outcome:
    """One run for each figure. Reward takes ``reward`` seconds at 100 tokens a second, or less as it is faster."""
    runs = [
        {
            JUDGED_BY: each,
            "tokens_per_second": each,
            "samples_per_second": each / 100,
            "settled_samples_per_second": each / 100,
            "step_seconds": 12.0,
            "rollout_idle": 0.25,
            "training_idle": 0.5,
            "staleness": 0.75,
            "given_up": 0.02,
            "effective_tokens_per_second": each / 2,
            "time_to_reward": {
                "reward": 0.4,
                "seconds": reward * 100 / each,
                "reached": False,
                "usd_per_point": reward / each,
                "penalty": {"half": reward * 90 / each, "double": reward * 120 / each},
            },
        }
        for each in tokens
    ]
    return Outcome(Contender(name, kind, Choice(**choice)), runs)


def some(*others: Outcome, ours: tuple[float, ...] = (880.0,), **more: Any) -> Comparison:
    mine = [outcome("ours", *ours, kind="ours"), outcome("ours, for reward", *ours, reward=900.0, kind="ours")]
    return Comparison(tiny(**more), [*mine, *others])


# -- how sure ---------------------------------------------------------------------------------------------------------


def test_ratios_are_paired_by_seed_so_that_the_seed_cancels() -> None:
    """Ours and A differ by 10 % with each seed, while seeds differ by a factor of nine."""
    found = some(outcome("A", 100.0, 300.0, 900.0), ours=(110.0, 330.0, 990.0))
    ratio = found.ratio(found.find("ours"), found.find("A"))
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((1.1, 1.1, 1.1))
    assert not ratio.even


def test_an_interval_is_that_of_student_and_what_includes_one_is_even() -> None:
    found = some(outcome("A", 100.0, 100.0, 100.0), ours=(98.0, 103.0, 104.0))
    ratio = found.ratio(found.find("ours"), found.find("A"))
    logs = [log(0.98), log(1.03), log(1.04)]
    mean = sum(logs) / 3
    spread = (sum((each - mean) ** 2 for each in logs) / 2) ** 0.5
    assert ratio.mean == pytest.approx(exp(mean))
    assert ratio.high == pytest.approx(exp(mean + 2.919986 * spread / 3**0.5), rel=1e-6)  # t of 90 %, 2 degrees
    assert ratio.even and ratio.seeds == 3


def test_with_one_seed_the_spread_is_that_of_all_ways_together_if_there_is_one() -> None:
    far = outcome("far", 50.0)
    alone = some(far)
    assert alone.ratio(alone.find("ours"), far).even, "nothing is known of the spread"
    found = some(far, outcome("A", 99.0, 101.0, 100.0), ours=(100.0, 100.0, 100.0))
    ratio = found.ratio(found.find("ours"), far)
    assert 1 < ratio.low < 2 < ratio.high < 3 and not ratio.even


def test_of_several_measures_each_has_its_own_row_of_ours() -> None:
    found = some(outcome("A", 800.0, reward=700.0), ours=(880.0,))
    assert found.ours(THROUGHPUT).contender.name == found.ours(SAMPLES).contender.name == "ours"
    assert found.ours(REWARD).contender.name == found.ours(COST).contender.name == "ours, for reward"
    assert [each.contender.name for each in found.ranked(THROUGHPUT)] == ["ours", "A"]
    assert [each.contender.name for each in found.ranked(REWARD)] == ["A", "ours, for reward"]
    assert found.ratio(found.find("A"), found.ours(REWARD), REWARD).mean == pytest.approx((900 / 880) / (700 / 800))


def test_an_oracle_that_could_run_as_ours_does_is_not_beaten() -> None:
    oracle = outcome("oracle", 700.0, kind="bound", estimator="oracle")
    assert some(oracle).oracle.contender.name == "ours"
    better = outcome("oracle", 900.0, kind="bound", estimator="oracle")
    assert some(better).oracle.contender.name == "oracle"


def test_who_comes_close_by_any_measure_is_run_with_further_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = {"c-mlfq": 95.0, "heddle": 50.0, "sticky": 50.0, "cost-aware": 100.0}
    ran: list[tuple[str, int]] = []

    def fake(scenario: PosttrainScenario) -> dict[str, Any]:
        ran.append((scenario.router, scenario.seed))
        reward = 400.0 if scenario.router == "heddle" else 1000.0
        return dict(outcome("", speeds[scenario.router] * scenario.seed, reward=reward).runs[0])

    monkeypatch.setattr(module, "figures_of", fake)
    those = [
        Contender("ours", "ours", Choice()),
        Contender("c-mlfq", "change", Choice(router="c-mlfq")),
        Contender("heddle", "change", Choice(router="heddle")),
        Contender("sticky", "change", Choice(router="sticky")),
    ]
    (found,) = compare([tiny(seed=1)], those, tmp_path, seeds=3)
    assert ran == [
        *((router, 1) for router in ("cost-aware", "c-mlfq", "heddle", "sticky")),
        *((router, seed) for router in ("cost-aware", "c-mlfq", "heddle") for seed in (2, 3)),
    ]
    assert [each.throughput for each in found.outcomes] == [200.0, 190.0, 100.0, 50.0]


# -- in words ---------------------------------------------------------------------------------------------------------


def test_the_verdict_counts_nobody_who_knows_lengths_or_has_our_split_in_hindsight() -> None:
    knows = outcome("oracle", 990.0, 990.0, 990.0, kind="bound", estimator="oracle")
    static = outcome("static best", 985.0, 985.0, 985.0, kind="bound", planner="static-best")
    rival = outcome("A", 440.0, 441.0, 439.0, planner="static-best")
    said = " ".join(verdict(some(knows, static, rival, ours=(880.0, 880.0, 880.0))))
    assert "Tokens per second: ours is first, 100.0% (99.2% to 100.8%) ahead of A." in said
    assert "Ours reaches 88.9% of the best that could know all lengths (it knows lengths)." in said


def test_it_says_who_is_even_and_who_is_ahead() -> None:
    ours = (880.0, 880.0, 880.0)
    even = outcome("b", 870.0, 890.0, 880.0)
    assert "Tokens per second: ours is even with b." in " ".join(verdict(some(even, ours=ours)))
    ahead = outcome("c", 923.0, 924.0, 925.0)
    said = " ".join(verdict(some(even, ahead, ours=ours)))
    assert "Tokens per second: first is c (5.0% (4.8% to 5.2%) ahead of ours)." in said
    slow = outcome("d", 440.0, reward=300.0)
    said = " ".join(verdict(some(slow, even, ours=ours)))
    assert "Time to reward: first is d (50.0%" in said and "half the penalty: d is" in said


def test_too_few_steps_are_said_instead_of_ratios() -> None:
    found = some(outcome("A", 440.0), steps=14)
    (said,) = verdict(found)
    assert said.startswith("14 steps are too few to settle") and "15" in said
    page = comparison_page([found], "steelyard compare tiny.yaml", "images", "a test")
    assert "even (" not in page and "tokens per second" not in page.split("## tiny")[1]
    assert len(list(verdict(some(outcome("A", 440.0), steps=15)))) > 1


def test_there_is_a_verdict_where_nothing_else_could_be_run() -> None:
    found = some(Outcome(Contender("A", "rival", Choice()), (), "does not fit"))
    assert next(iter(verdict(found))) == "No other way was run that knows no lengths in advance."


def test_the_table_of_ratios_has_every_way_and_measure() -> None:
    found = some(outcome("A", 440.0, 441.0, 439.0), outcome("b", 870.0, 890.0, 880.0), ours=(880.0, 880.0, 880.0))
    heads, rows = standing(found)
    assert heads[1:5] == ["tokens per second", "samples per second", "reward", "cost"]
    by_name = {row[0]: row[1:] for row in rows}
    assert list(by_name) == ["b", "A"] and all(len(row) == len(heads) - 1 for row in by_name.values())
    assert by_name["b"][0] == "even (1.000)" and by_name["A"][0] == "0.50 (0.50-0.50)"


def test_the_page_and_the_figure_have_every_figure_that_was_run() -> None:
    refused = Outcome(Contender("c", "change", Choice()), (), "tiny: it does not fit")
    found = some(outcome("A", 440.0), refused)
    page = comparison_page([found], "steelyard compare tiny.yaml", "images/comparison", "commit abc, 2026-11-19")
    assert "| A | 440 | 440 | 4.40 | 12.0 | 25% | 50% | 0.75 | 2.0% | ~227 | 2.27 |" in page
    assert "Not run: c: tiny: it does not fit" in page and "(images/comparison/tiny.svg)" in page
    assert "commit abc, 2026-11-19" in page
    bars = [line for line in comparison_svg(found).splitlines() if 'rx="2"' in line and 'height="14"' in line]
    assert [float(line.split('width="')[1].split('"')[0]) for line in bars] == [520.0, 520.0, 260.0]


def test_what_is_left_out_of_a_system_is_said_once() -> None:
    both = [
        Outcome(Contender(name, "rival", Choice(), left_out="Its cache."), outcome("A", 1.0).runs)
        for name in ("A", "A, for reward", "B")
    ]
    page = comparison_page([some(*both)], "steelyard compare tiny.yaml", "images", "a test")
    assert page.count("Its cache.") == 1 and "Left out of A, B: Its cache." in page


def test_a_ratio_of_nothing_is_even() -> None:
    assert SpeedRatio(1.0004, 1.0002, 1.0006, 3).even and not SpeedRatio(1.01, 1.002, 1.02, 3).even


def test_the_command_prints_what_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps({**WRITTEN, "steps": 1, "trajectories": {"preset": "search", "prompts": 2, "group": 2}}))
    asked = ["compare", str(path), "--out", str(tmp_path / "kept"), "--no-rivals", "--routers", "sticky"]
    page = tmp_path / "docs" / "comparison.md"
    ran = CliRunner().invoke(app, [*asked, "--page", str(page), "--json"])
    assert ran.exit_code == 0, ran.output
    (found,) = json.loads(ran.stdout)
    names = [each["name"] for each in found["outcomes"]]
    bounds = ["oracle", "oracle, co-located", "static best"]
    assert names == [*(each.name for each in OURS), *bounds, "our policies", "router sticky"]
    assert json.loads(page.with_suffix(".json").read_text()) == [found]
    for each in found["outcomes"]:
        star = " *" if "oracle" in each["name"] else ""  # they are told lengths in advance
        assert f"| {each['name']}{star} | {each['figures']['tokens_per_second']:,.0f} |" in page.read_text()
    assert (page.parent / "images" / "comparison" / "tiny.svg").read_text().startswith("<svg")
    again = CliRunner().invoke(app, asked)
    assert again.exit_code == 0 and "1 steps are too few to settle" in again.output


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
