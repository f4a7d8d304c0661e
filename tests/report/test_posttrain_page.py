"""The page of a post-training run: complete, self-contained, and safe with any name."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from steelyard.posttrain.record import RoleChange
from steelyard.posttrain.result import PosttrainResult
from steelyard.posttrain.run import posttrain
from steelyard.report.posttrain_page import posttrain_page
from steelyard.scenario import posttrain_from_dict
from support.report_text import HOSTILE, charts_of, read, words

SMALL: dict[str, Any] = {
    "model": "qwen3-14b",
    "name": "small run",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 8, "group": 4},
    "mode": "asynchronous",
    "rollout": [{"tp": 2, "replicas": 2}],
    "training": {"tp": 4, "dp": 1, "micro_batch_tokens": 16384},
    "planner": "search",
    "steps": 4,
}


@cache
def result() -> PosttrainResult:
    return posttrain(posttrain_from_dict(SMALL))


def test_everything_is_said() -> None:
    text, got = words(posttrain_page(result())), result().summary
    for part in (
        "small run",
        "8 GPUs (4 roll out, 4 train in the beginning), asynchronous, 4 steps",
        "A step takes",
        "The mean step, stage after stage",
        "training: backward",
        "GPUs that roll out",
        "in a bubble",
        "Samples by staleness, in versions of the weights",
        "2 behind",
        "Seconds of a trajectory p50",
        "Cost of each step, $",
        "Reward over time",
        "micro_batch_tokens",
        f"Training waits for samples {100 * got['step_seconds']['waiting'] / got['step_seconds']['total']:.1f} %",
    ):
        assert part in text, part
    assert "nan" not in text.lower()


def test_changes_show_predicted_and_realised_gains() -> None:
    record = RoleChange(1, "4 train -> 2 train", 12.5, 61.0, 50.0, 37.5, [40.0, 42.0])
    change = {
        "step": record.step,
        "what": record.what,
        "outcome": record.outcome,
        "seconds": record.seconds,
        "predicted": record.predicted,
        "realised": record.realised,
        "predicted_step": record.predicted_step,
        "measured_step": 41.0,
    }
    text = words(posttrain_page(replace(result(), summary={**result().summary, "reallocations": [change]})))
    for part in ("4 train -> 2 train", "12.5 s", "9.00 s", "37.5 s", "41.0 s"):
        assert part in text, part


def test_equal_runs_have_equal_pages() -> None:
    assert posttrain_page(result()) == posttrain_page(result())


def test_names_cannot_break_out() -> None:
    got = {**result().summary, "name": HOSTILE, "mode": HOSTILE}
    got["times_from"] = {"rollout": [HOSTILE], "training": {HOSTILE: 1.0}}
    change = dict.fromkeys(("seconds", "predicted", "realised", "predicted_step", "measured_step"), 1.0)
    got["reallocations"] = [{**change, "step": 0, "what": HOSTILE, "outcome": HOSTILE}]
    scenario = result().scenario.replace(gpu=HOSTILE)
    page = posttrain_page(replace(result(), summary=got, scenario=scenario))
    outline = read(page)
    assert outline.scripts == len(charts_of(page)) + 1 and "<script>alert" not in page
    assert "".join(outline.text).count("alert(1)") >= 6


def test_a_run_of_one_step_has_a_page() -> None:
    one = posttrain(posttrain_from_dict({**SMALL, "steps": 1, "planner": "given"}))
    text = words(posttrain_page(one))
    assert "Each step" in text and "nan" not in text.lower()
