"""`steelyard search`: the same frontier as exhaustive simulation, and the same bytes however it is run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.report.search import search_figures
from steelyard.scenario.checking import checked
from steelyard.scenario.search import SearchScenario
from steelyard.search.answer import answer_search
from steelyard.search.search import SearchResult, find_fleets
from steelyard.sim.run import simulate

SMALL: dict[str, Any] = {
    "name": "small",
    "model": "llama-3.1-8b",
    "engine": {"max_model_len": 4096},
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 20},
        "requests": 200,
        "prompt": {"kind": "lognormal", "median": 300, "p95": 900},
        "output": {"kind": "lognormal", "median": 30, "p95": 80},
    },
    "slo": {"ttft_p95": 0.5, "tpot_p95": 0.03},
    "seed": 3,
    "search": {
        "gpus": 4,
        "seconds": 1,
        "requests": 60,
        "levels": {"ttft_p95": [0.1, 0.5]},
        "serve": {"gpu": ["h100", "a100"], "tp": [1, 2, 4], "engine": {"max_num_seqs": [8, 32]}},
        "prefill": {"gpu": "h100", "tp": 1},
        "decode": {"gpu": ["h100", "h20"], "tp": 1},
    },
}

FEW: dict[str, Any] = {  # for what holds of any search, however small
    **SMALL["search"],
    "gpus": 2,
    "levels": {},
    "serve": {"gpu": "h100", "tp": 1, "engine": {"max_num_seqs": [8, 32]}},
    "decode": {"gpu": "h100", "tp": 1},
}


def scenario(**changes: Any) -> SearchScenario:
    said = {**SMALL, **{key: value for key, value in changes.items() if key != "search"}}
    said["search"] = {**SMALL["search"], **changes.get("search", {})}
    return checked(SearchScenario, said, lambda _: "small")


def best(found: SearchResult) -> dict[str, list[tuple[str, float]]]:
    """The best of each architecture and the next best, by level."""
    return {level.name: [(each.name, each.score) for each in level.choices] for level in found.levels}


@pytest.mark.parametrize("objective", ["throughput", "per-dollar"])
def test_finds_what_exhaustive_simulation_finds(objective: str) -> None:
    asked = scenario(search={"objective": objective})
    found, everything = find_fleets(asked, workers=1), find_fleets(asked, workers=1, exhaustive=True)
    assert best(found) == best(everything)
    assert found.simulations < everything.simulations
    assert sum(tally.simulated for tally in everything.tallies.values()) == sum(map(len, everything.space.groups))


def test_a_setting_that_never_matters_is_no_other_fleet() -> None:
    def asked(*seats: int) -> SearchScenario:
        decode = {"gpu": "h100", "tp": 1, "engine": {"max_num_seqs": list(seats)}}
        slo = {"ttft_p95": 0.5, "tpot_p95": 0.009}  # too tight for as many requests at a time
        return scenario(slo=slo, search={"architectures": ["pdd"], "decode": decode})

    few, many, some = (find_fleets(asked(*seats), workers=1) for seats in ((200,), (200, 400, 800), (200, 20)))
    everything = find_fleets(asked(200, 400, 800), workers=1, exhaustive=True)
    assert few.simulations == many.simulations < some.simulations
    assert [best(few)[level][0] for level in best(few)] == [best(many)[level][0] for level in best(many)]
    for level in many.levels:
        assert level.best is not None
        assert level.best.score == max(everything.everyone[level.name].values())


def test_the_cheapest_fleet_for_a_rate() -> None:
    asked = scenario(search={"objective": "cost", "gpus": 6})
    found, everything = find_fleets(asked, workers=1), find_fleets(asked, workers=1, exhaustive=True)
    for level, whole in zip(found.levels, everything.levels, strict=True):
        assert level.best is not None and whole.best is not None
        assert level.best.usd_per_hour == whole.best.usd_per_hour
        cheaper = [
            score for score in everything.everyone[level.name].values() if -score < level.best.usd_per_hour - 1e-9
        ]
        assert not cheaper


def test_a_choice_carries_its_rate_and_no_higher_one() -> None:
    found = find_fleets(scenario(), workers=1)
    for level in found.levels:
        choice = level.best
        assert choice is not None
        carried = simulate(found.scenario_of(choice)).summary
        assert all(verdict.met for verdict in carried.slo.values())
        above = simulate(found.scenario_of(choice, rate=choice.rate * 1.02)).summary
        assert not all(verdict.met for verdict in above.slo.values()) or above.unsteady is not None


def test_goodput_counts_good_requests() -> None:
    asked = scenario(slo={"ttft": 0.5, "tpot": 0.03}, search={"good": 0.9, "levels": {}})
    choice = find_fleets(asked, workers=1).levels[0].best
    assert choice is not None and choice.outcome.good >= 0.9


def test_any_number_of_workers_gives_the_same_figures(tmp_path: Path) -> None:
    texts = [
        json.dumps(search_figures(answer_search(scenario(search=FEW), journal=tmp_path / f"{n}.jsonl", workers=n)))
        for n in (1, 2)
    ]
    assert texts[0] == texts[1]


def started(tmp_path: Path, *more: str) -> subprocess.Popen[str]:
    file = tmp_path / "small.json"
    file.write_text(json.dumps({**SMALL, "search": FEW}), encoding="utf-8")
    command = [sys.executable, "-m", "steelyard", "search", str(file), "--out", str(tmp_path / "out"), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outputs(tmp_path: Path) -> tuple[bytes, bytes]:
    return (tmp_path / "out" / "search.json").read_bytes(), (tmp_path / "out" / "search.html").read_bytes()


def test_a_killed_search_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    assert started(whole, "--workers", "2").wait(300) == 0
    journal = killed / "out" / "journal.jsonl"
    for rows in (3, 20, 40):
        process = started(killed, "--workers", "2")
        while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < rows):
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert started(killed, "--workers", "2").wait(300) == 0
    assert outputs(whole) == outputs(killed)
    keys = Counter(json.loads(line).get("key") for line in journal.read_text(encoding="utf-8").splitlines())
    assert max(keys.values()) == 1
    assert sum(keys.values()) == len((whole / "out" / "journal.jsonl").read_text(encoding="utf-8").splitlines())


def test_a_killed_worker_loses_no_result(tmp_path: Path) -> None:
    whole, hurt = tmp_path / "whole", tmp_path / "hurt"
    whole.mkdir()
    hurt.mkdir()
    assert started(whole, "--workers", "1").wait(300) == 0
    process = started(hurt, "--workers", "2")
    journal = hurt / "out" / "journal.jsonl"
    killed = 0
    for rows in (3, 12):
        while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < rows):
            time.sleep(0.02)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split()
        for child in children[:1]:
            os.kill(int(child), signal.SIGKILL)
            killed += 1
    assert process.wait(300) == 0 and killed == 2
    assert outputs(whole) == outputs(hurt)


def test_ray_gives_the_same_bytes(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    local, on_ray = tmp_path / "local", tmp_path / "ray"
    local.mkdir()
    on_ray.mkdir()
    assert started(local, "--workers", "2", "--no-sure").wait(300) == 0
    process = started(on_ray, "--workers", "2", "--no-sure", "--ray", "auto")
    _, problems = process.communicate(timeout=300)
    assert process.returncode == 0, problems
    assert outputs(local) == outputs(on_ray)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"slo": {"ttft_p95": 0.5, "e2e_p95": 0.2}, "search": {"levels": {}}}, "contradicts"),
        ({"slo": {}, "search": {"levels": {}}}, "no limit that a rate could break"),
        ({"search": {"serve": {"gpu": "h100", "tp": 3}, "prefill": None, "decode": None}}, "no fleet can work"),
        ({"search": {"levels": {"e2e_p95": [1, 2]}}}, "e2e_p95 is no limit of slo"),
        ({"search": {"architectures": ["afd"]}}, "attention"),
        (
            {"search": {"serve": {"gpu": "h100", "engine": {f"max_num_{k}": list(range(1, 99)) for k in "abcdef"}}}},
            "kinds of engines; at most",
        ),
    ],
)
def test_bad_searches_are_refused_in_one_message(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        find_fleets(scenario(**changes), workers=1)


def test_a_journal_of_another_search_is_refused(tmp_path: Path) -> None:
    find_fleets(scenario(search={"gpus": 2}), journal=tmp_path / "journal.jsonl", workers=1)
    with pytest.raises(UserError, match="journal of"):
        find_fleets(scenario(), journal=tmp_path / "journal.jsonl", workers=1)
