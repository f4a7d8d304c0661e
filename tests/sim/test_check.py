"""`check` passes results that are true, and names everything that is wrong with one that is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from steelyard import load_scenario, simulate
from steelyard.cli import app
from steelyard.sim import Result, Summary
from steelyard.sim.check import check
from steelyard.sim.invariants import BrokenResult
from support.paths import EXAMPLES


@cache
def whole() -> Result:
    return simulate(load_scenario(EXAMPLES / "quickstart.yaml", ["workload.requests=40"]))


def broken(change: Callable[[Result], None]) -> str:
    """What `check` says about a copy of a true result after a change."""
    result = whole()
    made = Result.__new__(Result)
    made.__dict__.update(result.__dict__)
    made.requests = {name: column.copy() for name, column in result.requests.items()}
    change(made)
    with pytest.raises(BrokenResult) as raised:
        check(made)
    return str(raised.value)


def figure(**fields: Any) -> Callable[[Result], None]:
    """Change fields of the summary."""

    def change(result: Result) -> None:
        result.summary = replace(result.summary, **fields)

    return change


def cell(column: str, row: int, value: Any) -> Callable[[Result], None]:
    """Change a cell of the requests."""

    def change(result: Result) -> None:
        result.requests[column][row] = value

    return change


def part(name: str, **fields: Any) -> Callable[[Result], None]:
    """Change fields of a part of the summary."""
    return figure(**{name: replace(getattr(whole().summary, name), **fields)})


SUMMARIES: list[tuple[Callable[[], Callable[[Result], None]], str]] = [
    (lambda: figure(mfu=37.46), "mfu is 37.46; a share is from 0 to 1"),
    (lambda: figure(mfu=-0.1), "mfu is -0.1"),
    (lambda: figure(mbu=float("nan")), "summary.mbu is nan"),
    (lambda: figure(requests=41), "outcomes add up to 40 requests, not 41"),
    (lambda: figure(steps=1), "the fleet 1"),
    (lambda: part("ttft", p50=9e9), "ttft: p50 is 9000000000.0, above p90"),
    (lambda: part("ttft", mean=-1.0), "ttft: zero is 0.0, above mean"),
    (lambda: part("e2e", count=3), "e2e is of 3 requests; 40 finished"),
    (lambda: part("throughput", requests_per_s=1e6), "the number of finished requests is 40"),
    (lambda: part("throughput", output_tokens_per_s=float("inf")), "output_tokens_per_s is inf"),
    (lambda: part("provenance", analytic=0.5), "the sum of provenance is"),
    (lambda: part("cost", usd=-3.0), "cost.usd is -3.0"),
    (lambda: part("prefix_cache", hit_rate=1.5), "prefix_cache.hit_rate is 1.5"),
    (lambda: part("memory", usable_bytes=1), "memory: used is"),
    (lambda: figure(gpu_hours=1e9), "above gpus * duration_s"),
]


@pytest.mark.parametrize(("change", "words"), SUMMARIES, ids=[words for _, words in SUMMARIES])
def test_wrong_figures_are_named(change: Callable[[], Callable[[Result], None]], words: str) -> None:
    assert words in broken(change())


ROWS: list[tuple[str, Any, str]] = [
    ("finish", 0.0, "1 requests with finish before first_token, the first is request 7"),
    ("scheduled", -1.0, "scheduled not a second of the run"),
    ("first_token", np.nan, "finished without first_token"),
    ("arrival", np.inf, "arrival not a second of the run"),
    ("cached", 10**9, "more cached than its prompt"),
    ("status", "aborted", "39 requests are finished, the summary has 40"),
    ("status", "rejected", "rejected without a reason"),
    ("output", 10**6, "finished requests needed"),
    ("preemptions", 3, "0 preemptions, requests have 3"),
    ("replica", -1, "finished on no replica"),
]


@pytest.mark.parametrize(("column", "value", "words"), ROWS, ids=[words for *_, words in ROWS])
def test_wrong_requests_are_named(column: str, value: Any, words: str) -> None:
    assert words in broken(cell(column, 7, value))


def test_steps_out_of_order_are_named() -> None:
    result = simulate(load_scenario(EXAMPLES / "quickstart.yaml", ["workload.requests=5"]))
    log = next(log for log in result.logs if len(log.ends) > 3)
    log.end[2] = log.end[0] - 1
    with pytest.raises(BrokenResult, match="a step ends before it starts"):
        check(result)


def test_all_violations_are_told_at_once() -> None:
    def change(result: Result) -> None:
        figure(mbu=2.0, mfu=3.0)(result)
        cell("finish", 0, 0.0)(result)

    said = broken(change)
    assert "mbu is 2.0" in said and "mfu is 3.0" in said and "finish before" in said


def test_parts_and_folders_are_checked_as_far_as_they_go(tmp_path: Path) -> None:
    run = load_scenario(EXAMPLES / "quickstart.yaml", ["workload.requests=20"])
    check(simulate(run, keep=["summary"]))
    check(simulate(run, keep=["steps"]))
    simulate(run).save(tmp_path)
    loaded = Result.load(tmp_path)
    check(loaded)
    loaded.steps["end"] = loaded.steps["start"] - 1
    with pytest.raises(BrokenResult, match="ends before it starts"):
        check(loaded)


def test_the_command_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = str(EXAMPLES / "quickstart.yaml")
    asked = ["simulate", scenario, "--set", "workload.requests=5", "--no-intervals", "--check", "--out"]
    assert CliRunner().invoke(app, [*asked, str(tmp_path / "a")]).exit_code == 0

    def wrong(result: Result) -> None:
        raise BrokenResult(["busy is 2.0; a share is from 0 to 1"])

    monkeypatch.setattr("steelyard.cli.simulate.check_result", wrong)
    said = CliRunner().invoke(app, [*asked, str(tmp_path / "b")])
    assert said.exit_code == 1 and "violates 1 invariants:\nbusy is 2.0" in said.output


def test_every_simulation_of_a_test_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> Summary:
        return replace(whole().summary, steps=1)

    monkeypatch.setattr("steelyard.sim.run.summarise", wrong)
    with pytest.raises(BrokenResult, match="the fleet 1"):
        simulate(load_scenario(EXAMPLES / "quickstart.yaml", ["workload.requests=40"]))
