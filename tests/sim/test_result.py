"""Results are data: they pickle, go to a folder and come back, and become tables of other libraries."""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard import UserError, load_scenario, scenario_from_dict
from steelyard.posttrain.result import PosttrainResult
from steelyard.posttrain.run import posttrain
from steelyard.report import write_result
from steelyard.report.posttrain import timeline_svg
from steelyard.scenario import posttrain_from_dict
from steelyard.sim import Result, simulate
from steelyard.sim.kept_scenario import read_scenario, write_scenario
from support.paths import ROOT

SCENARIO = {
    "model": "llama-3.1-8b",
    "name": "small",
    "fleet": {"gpu": "h100", "replicas": 2},
    "workload": {"arrivals": {"kind": "poisson", "rate": 20.0}, "requests": 60, "prompt": 300, "output": 20},
    "slo": {"ttft_p95": 0.5},
}


@pytest.fixture(scope="module")
def result() -> Result:
    return simulate(scenario_from_dict(SCENARIO))


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return {name: repr(column.tolist()) for name, column in one.items()} == {
        name: repr(column.tolist()) for name, column in other.items()
    }


def test_a_result_pickles(result: Result) -> None:
    again: Result = pickle.loads(pickle.dumps(result))
    assert again.summary == result.summary and again.scenario == result.scenario and again.notes == result.notes
    assert same(again.requests, result.requests) and same(again.steps, result.steps)
    assert [column.tolist() for column in again.itl] == [column.tolist() for column in result.itl]
    lean: Result = pickle.loads(pickle.dumps(simulate(scenario_from_dict(SCENARIO), keep=["requests"])))
    assert same(lean.requests, result.requests) and not lean.has("summary")


def test_a_result_says_what_it_is_in_one_line(result: Result) -> None:
    assert repr(result).startswith("<Result small: 60/60 finished, ttft p95 0.0") and "\n" not in repr(result)
    assert repr(simulate(scenario_from_dict(SCENARIO), keep=["steps"])) == "<Result with steps>"


def test_a_folder_gives_back_what_it_got(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path / "one")
    write_result(result, tmp_path / "other")
    for name in ("summary.json", "requests.parquet", "steps.parquet"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    again = Result.load(tmp_path / "other")
    assert again.summary == result.summary and again.notes == result.notes
    assert same(again.requests, result.requests) and same(again.steps, result.steps)
    assert again.requests["finish"].dtype == np.float64 and again.requests["id"].dtype == np.int64
    again.save(tmp_path / "third")
    assert (tmp_path / "third" / "summary.json").read_bytes() == (tmp_path / "one" / "summary.json").read_bytes()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_folder_keeps_the_scenario_as_it_was_run(path: Path, tmp_path: Path) -> None:
    scenario = load_scenario(path, ["seed=12"])
    write_scenario(scenario, tmp_path)
    again = read_scenario(tmp_path)
    assert again.model_dump() == scenario.model_dump() and again.seed == 12


def test_what_a_folder_does_not_hold_says_so(result: Result, tmp_path: Path) -> None:
    result.save(tmp_path)
    again = Result.load(tmp_path)
    for name in ("scenario", "logs", "gaps", "itl"):
        with pytest.raises(UserError, match=f"no ({name}|gaps)"):
            getattr(again, name)
        assert not hasattr(again, name)
    simulate(scenario_from_dict(SCENARIO), keep=["summary"]).save(tmp_path)
    assert not Result.load(tmp_path).has("requests"), "nothing of an earlier result is left"


@pytest.mark.parametrize("text", ["", "no JSON", '{"name": 1}', '{"unheard": 1}'])
def test_a_folder_without_a_result_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"summary\.json"):
        Result.load(tmp_path)
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(UserError, match=r"summary\.json"):
        Result.load(tmp_path)


def test_arrow_tables(result: Result) -> None:
    table = result.to_arrow()
    assert table.num_rows == 60 and table.column_names == list(result.requests)
    assert table["ttft"].to_pylist() == result.requests["ttft"].tolist()
    assert result.to_arrow("steps").num_rows == result.summary.steps


def test_pandas_is_asked_for_by_name_where_it_is_missing(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        result.to_pandas()


def test_pandas_frames(result: Result) -> None:
    pandas = pytest.importorskip("pandas")
    frame = result.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and frame["ttft"].tolist() == result.requests["ttft"].tolist()


def test_polars_frames(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    polars = pytest.importorskip("polars")
    frame = result.to_polars("steps")
    assert isinstance(frame, polars.DataFrame) and frame["end"].to_list() == result.steps["end"].tolist()
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(UserError, match="pip install polars"):
        result.to_polars()


# -- post-training ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> PosttrainResult:
    said = {
        "model": "qwen3-14b",
        "name": "loop",
        "gpu": "a800",
        "trajectories": {"preset": "search", "prompts": 8, "group": 4},
        "rollout": [{"tp": 1, "replicas": 4}],
        "training": {"tp": 4, "dp": 1, "micro_batch_tokens": 16384},
        "steps": 3,
    }
    return posttrain(posttrain_from_dict(said))


def test_a_post_training_result_is_data(trained: PosttrainResult, tmp_path: Path) -> None:
    again: PosttrainResult = pickle.loads(pickle.dumps(trained))
    assert again.summary == trained.summary and same(again.steps, trained.steps)
    assert timeline_svg(again) == timeline_svg(trained)
    assert repr(trained).startswith("<PosttrainResult loop: 3 steps, ")
    table = trained.trajectories
    assert (np.bincount(table["step"][table["step"] >= 0]) == 32).all()
    assert table["generated"][table["step"] >= 0].sum() == trained.steps["tokens"].sum()
    trained.save(tmp_path)
    loaded = PosttrainResult.load(tmp_path)
    assert loaded.summary == trained.summary and same(loaded.trajectories, table)
    assert same(loaded.steps, trained.steps)
    with pytest.raises(UserError, match="no held"):
        timeline_svg(replace(trained, held=loaded.held))
    assert trained.to_arrow().num_rows == len(table["id"]) and trained.to_arrow("steps").num_rows == 3


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ttft", 3),
        ("ttft", [1]),
        ("requests", "many"),
        ("pools", {}),
        ("pools", 3),
        ("kv", None),
        ("notes", 3),
        ("busy", 5.0),
        ("unknown", 1),
        ("seed", True),
    ],
)
def test_a_summary_that_was_changed_is_refused(result: Result, tmp_path: Path, key: str, value: object) -> None:
    result.save(tmp_path)
    path = tmp_path / "summary.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps({**written, key: value}))
    with pytest.raises(UserError, match=r"summary\.json: not a summary of this version"):
        Result.load(tmp_path)
