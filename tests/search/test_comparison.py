"""Comparisons of small fleets: true differences are found, equal ones are not told apart."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from steelyard import UserError, load_scenario, scenario_from_dict, simulate
from steelyard.report.serving_compare import serving_comparison_json
from steelyard.report.serving_compare_page import serving_comparison_page
from steelyard.search.compare.comparison import ServingComparison, compare_serving
from steelyard.search.compare.given import kind_of, read_given
from steelyard.search.compare.settings import changed_keys

SCENARIO: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "fleet": {"gpu": "h100"},
    "cost": {"source": "analytic"},
    "workload": {
        "arrivals": {"kind": "poisson", "rate": 8},
        "requests": 60,
        "prompt": {"kind": "uniform", "min": 200, "max": 1500},
        "output": {"kind": "uniform", "min": 20, "max": 120},
    },
    "slo": {"ttft_p95": 1.0},
    "seed": 3,
}
POSTTRAIN: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 2, "group": 2},
    "rollout": [{"tp": 1, "replicas": 2}],
    "training": {"dp": 2},
}


def write(path: Path, **changes: Any) -> Path:
    path.write_text(yaml.safe_dump({**SCENARIO, **changes}))
    return path


def compared(*paths: Path, seeds: int = 5, **options: Any) -> ServingComparison:
    return compare_serving(read_given(paths, []), seeds, **options)


def verdicts(found: ServingComparison) -> dict[str, str]:
    return {each.name: each.verdict for each in found.differences[0].figures}


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path / "base.yaml")


def test_a_faster_fleet_is_found(base: Path, tmp_path: Path) -> None:
    wide = write(tmp_path / "wide.yaml", fleet={"gpu": "h100", "tp": 2})
    found = compared(base, wide)
    (difference,) = found.differences
    assert [str(key) for key in difference.keys or ()] == ["fleet.tp: 1 -> 2"] and difference.pairing == "paired"
    told = verdicts(found)
    assert told["tpot.mean"] == told["ttft.mean"] == told["e2e.p95"] == "better"
    assert told["gpus"] == told["cost.usd_per_million_tokens"] == "worse"
    back = verdicts(compared(wide, base))
    assert back["tpot.mean"] == "worse" and back["gpus"] == "better"


def test_fleets_with_other_pools_are_told_by_what_was_chosen_and_not_by_defaults() -> None:
    pools = [{"role": "prefill", "gpu": "h100"}, {"role": "decode", "gpu": "h100", "replicas": 2, "engine": None}]
    one, apart = (scenario_from_dict({**SCENARIO, "fleet": fleet}) for fleet in (SCENARIO["fleet"], {"pools": pools}))
    told = {each.key: (each.base, each.here) for each in changed_keys(one, apart)}
    base, here = told["fleet.pools"]
    assert "gpu: h100" in base and "max_num" not in base
    assert here.count("role:") == 2 and "replicas: 2" in here and "expert_parallel" not in here


def test_equal_scenarios_are_equal_to_the_last_digit(base: Path, tmp_path: Path) -> None:
    spelled_out = write(tmp_path / "same.yaml", name="same", seed=77, engine={"max_num_seqs": 256})
    found = compared(base, spelled_out)
    assert found.differences[0].keys == [] and set(verdicts(found).values()) == {"no clear difference"}
    columns = [{**each.as_dict(), "name": "", "source": ""} for each in found.columns]
    assert columns[0] == columns[1] and columns[0]["seeds"] == [3, 4, 5, 6, 7]


def test_the_number_of_workers_changes_no_byte(base: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other.yaml", engine={"max_num_seqs": 4})
    alone, two = (compared(base, other, seeds=3, costs=True, workers=workers) for workers in (1, 2))
    assert serving_comparison_json(alone) == serving_comparison_json(two)
    assert serving_comparison_page(alone) == serving_comparison_page(two)


def test_other_requests_are_compared_unpaired(base: Path, tmp_path: Path) -> None:
    busier = write(tmp_path / "busy.yaml", workload={**SCENARIO["workload"], "prompt": 900})
    found = compared(base, busier)
    (difference,) = found.differences
    assert difference.pairing == "unpaired" and any("not asked the same requests" in note for note in difference.notes)
    assert [key.key for key in difference.keys or ()] == ["workload.prompt"]


def test_requests_that_no_seed_changes_give_exact_differences(tmp_path: Path) -> None:
    fixed = {"arrivals": {"kind": "burst"}, "requests": 30, "prompt": 500, "output": 50}
    pair = [write(tmp_path / f"{tp}.yaml", workload=fixed, fleet={"gpu": "h100", "tp": tp}) for tp in (1, 2)]
    found = {each.name: each for each in compared(*pair, seeds=2).differences[0].figures}
    assert found["tpot.mean"].verdict == "better" and found["tpot.mean"].p == 0


def test_a_shared_error_of_costs_cancels_and_others_do_not(base: Path, tmp_path: Path) -> None:
    fewer = write(tmp_path / "fewer.yaml", engine={"max_num_seqs": 8})
    other = write(tmp_path / "h200.yaml", fleet={"gpu": "h200"}, engine={"max_num_seqs": 8})
    widths = []
    for path in (fewer, other):
        figures = {each.name: each for each in compared(base, path, seeds=3, costs=True).differences[0].figures}
        figure = figures["tpot.p50"]
        assert figure.with_costs is not None and figure.relative_interval is not None and figure.relative is not None
        assert figure.with_costs[0] < figure.relative < figure.with_costs[1]
        seeds = figure.relative_interval[1] - figure.relative_interval[0]
        widths.append(figure.with_costs[1] - figure.with_costs[0] - seeds)
    assert 0 <= widths[0] < widths[1] / 3
    assert compared(base, fewer, seeds=2).differences[0].figures[0].with_costs is None


def test_a_folder_is_simulated_again_and_must_agree(base: Path, tmp_path: Path) -> None:
    result = simulate(load_scenario(base, ["fleet.tp=2", "seed=9"]))
    result.save(tmp_path / "run")
    found = compared(base, tmp_path / "run")
    assert [str(key) for key in found.differences[0].keys or ()] == ["fleet.tp: 1 -> 2"]
    assert [run.seed for run in found.columns[1].runs] == [3, 4, 5, 6, 7] and verdicts(found)["tpot.mean"] == "better"
    assert any("its own run has the same figures" in note for note in found.notes)
    slower = replace(result.summary, tpot=replace(result.summary.tpot, p95=1.0), steelyard="0.0.7")
    result.summary = slower
    result.save(tmp_path / "run")
    (note,) = [note for note in compared(base, tmp_path / "run").notes if "by Steelyard 0.0.7" in note]
    assert "TPOT p95 1, now 0.0" in note


def test_a_folder_without_its_scenario_is_shown_and_not_judged(base: Path, tmp_path: Path) -> None:
    simulate(load_scenario(base)).save(tmp_path / "run")
    (tmp_path / "run" / "scenario.json").unlink()
    found = compared(base, tmp_path / "run")
    assert set(verdicts(found).values()) == {"not judged", "no clear difference"} and verdicts(found)["gpus"] != "worse"
    assert any("cannot be simulated again (it holds no scenario.json)" in note for note in found.notes)
    assert not any("not asked the same" in note for note in found.differences[0].notes)
    (tmp_path / "run" / "scenario.json").write_text('{"model": "llama-3.1-8b", "unheard": 1}')
    assert any("unheard" in note for note in compared(base, tmp_path / "run").notes)


def test_kinds(base: Path, tmp_path: Path) -> None:
    after = tmp_path / "after.yaml"
    after.write_text(yaml.safe_dump(POSTTRAIN))
    assert kind_of([base, base]) == "serving" and kind_of([after]) == "post-training"
    with pytest.raises(UserError, match="one kind at a time"):
        kind_of([base, after])


def test_bad_input_is_told(base: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="two or more"):
        read_given([base], [])
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(UserError, match=r"run/summary\.json: no such file"):
        read_given([base, run], [])
    (run / "summary.json").write_text(json.dumps({"settled_tokens_per_second": 1.0}))
    with pytest.raises(UserError, match="result of post-training"):
        read_given([base, run], [])
    with pytest.raises(UserError, match="result folder"):
        read_given([base, run], ["seed=1"])


def test_equal_names_are_told_apart(base: Path) -> None:
    names = [each.name for each in read_given([base, base, base], [])]
    assert names == [str(base), f"{base} (2)", f"{base} (3)"]
