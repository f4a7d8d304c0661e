"""The result folder: what is in it, that it is whole or absent, and that it is the same bytes each time."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from steelyard.errors import UserError
from steelyard.records import tables as tables_module
from steelyard.report import OutputFolder, choose_output_dir, summary_json, write_files, write_result
from steelyard.report import folder as folder_module
from steelyard.scenario import scenario_from_dict
from steelyard.sim import result as result_module
from steelyard.sim import simulate
from steelyard.sim.plots import load as load_module
from support.report_samples import make_result, no_steps

BASIC = {"summary.json", "scenario.json", "requests.parquet", "steps.parquet", "report.html"}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_files_of_a_run(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "run"
    write_result(make_result(40), out)
    assert names(out) == BASIC
    assert names(tmp_path) == {"deep"}
    assert names(tmp_path / "deep") == {"run"}


def test_trace_on_request_and_steps_off(tmp_path: Path) -> None:
    write_result(make_result(40), tmp_path / "run", trace=True, steps=False)
    assert names(tmp_path / "run") == BASIC - {"steps.parquet"} | {"trace.json.gz"}


def test_same_run_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_result(make_result(60, labels=("x", "y")), tmp_path / name, trace=True)
    assert len(names(tmp_path / "a")) == 6
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_summary_is_strict_json_in_order(tmp_path: Path) -> None:
    result = no_steps(make_result(5))
    result.summary = replace(result.summary, mbu=np.float64(0.1))
    write_result(result, tmp_path / "run")
    text = (tmp_path / "run" / "summary.json").read_text()

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is not JSON")

    read = json.loads(text, parse_constant=refuse)
    assert list(read) == [*result.summary.to_dict(), "notes"]
    assert read["ttft"]["p95"] is None
    assert read["mfu"] is None
    assert read["mbu"] == 0.1
    assert read["notes"] == result.notes
    assert text == summary_json(result)


def test_tables_hold_every_row_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_module, "ROWS_PER_GROUP", 100)
    result = make_result(60)
    write_result(result, tmp_path / "run")
    for name, columns in (("requests", result.requests), ("steps", result.steps)):
        table = pq.read_table(tmp_path / "run" / f"{name}.parquet")
        assert table.column_names == list(columns)
        for key, column in columns.items():
            np.testing.assert_array_equal(table[key].to_numpy(), column)
    file = pq.ParquetFile(tmp_path / "run" / "steps.parquet")
    assert file.num_row_groups == -(-len(result.steps["end"]) // 100) > 1
    assert file.schema_arrow.field("start").type == "double"
    assert pq.read_schema(tmp_path / "run" / "requests.parquet").field("status").type == "string"


def test_empty_tables_keep_their_columns(tmp_path: Path) -> None:
    result = no_steps(make_result(5))
    write_result(result, tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "steps.parquet")
    assert table.num_rows == 0
    assert table.column_names == list(result.steps)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_a_failure_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: type[BaseException]
) -> None:
    def fail(*_: Any) -> str:
        assert list(tmp_path.rglob("requests.parquet")), "fails when half is written"
        raise failure

    monkeypatch.setattr(folder_module, "render_page", fail)
    with pytest.raises(failure):
        write_result(make_result(10), tmp_path / "deep" / "run")
    assert names(tmp_path) == set()


def test_a_failure_leaves_the_earlier_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_result(make_result(10), tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}

    def fail(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(folder_module, "render_page", fail)
    with pytest.raises(KeyboardInterrupt):
        write_result(make_result(20), tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def test_overwriting_replaces_our_files_and_no_others(tmp_path: Path) -> None:
    write_result(make_result(10), tmp_path / "run", trace=True)
    (tmp_path / "run" / "my-notes.txt").write_text("keep me")
    write_result(make_result(20), tmp_path / "run")
    assert names(tmp_path / "run") == {*BASIC, "my-notes.txt"}
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["requests"] == 20


def test_full_disk_is_one_clear_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_module, "render_page", full)
    with pytest.raises(UserError, match=r"cannot write results to .*run: No space left on device"):
        write_result(make_result(10), tmp_path / "run")
    assert names(tmp_path) == set()


def test_next_free_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_output_dir(None, "quick", False) == Path("runs/quick-1")
    assert names(tmp_path) == set(), "choosing writes nothing"
    for taken in ("quick-1", "quick-9", "quick-x", "other-30"):
        (tmp_path / "runs" / taken).mkdir(parents=True)
    assert choose_output_dir(None, "quick", False) == Path("runs/quick-10")
    assert choose_output_dir(None, "../a b/<c>", False) == Path("runs/a-b-c-1")
    assert choose_output_dir(None, "??", False) == Path("runs/run-1")


def test_two_runs_of_a_name_at_once_get_a_number_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one, other = OutputFolder(None, "quick", False), OutputFolder(None, "quick", False)
    for each, requests in ((one, 10), (other, 20)):
        with each.stage() as stage:
            write_files(make_result(requests), stage)
    assert (one.path, other.path) == (Path("runs/quick-1"), Path("runs/quick-2"))
    assert [json.loads((each.path / "summary.json").read_text())["requests"] for each in (one, other)] == [10, 20]


def test_intervals_are_not_written_into_the_result_of_another_run(tmp_path: Path) -> None:
    mine = OutputFolder(tmp_path / "run", "n", False)
    with mine.stage() as stage:
        write_files(make_result(10), stage)
    mine.update(make_result(10))
    mine.update(make_result(10))
    write_result(make_result(20), tmp_path / "run")
    with pytest.raises(UserError, match="another run has replaced the result"):
        mine.update(make_result(10))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["requests"] == 20


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    assert choose_output_dir(out, "n", False) == out
    (out / "summary.json").touch()
    with pytest.raises(UserError, match=r"run is not empty.*--overwrite"):
        choose_output_dir(out, "n", False)
    assert choose_output_dir(out, "n", True) == out


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "run" / "deeper"):
        with pytest.raises(UserError, match="file is not a folder"):
            choose_output_dir(out, "n", True)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a place nobody can write to: /proc")
def test_unwritable_parent_is_refused() -> None:
    with pytest.raises(UserError, match="cannot write results to /proc/self/run: "):
        choose_output_dir(Path("/proc/self/run"), "n", False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_parent_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(UserError, match="Permission denied"):
        choose_output_dir(tmp_path / "locked" / "run", "n", False)


def test_name_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="too long"):
        choose_output_dir(tmp_path / ("x" * 300), "n", False)


def test_a_large_result_is_written_without_a_table_of_all_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its files are the same."""
    monkeypatch.setattr(tables_module, "ROWS_PER_GROUP", 100)
    monkeypatch.setattr(load_module, "_CHUNK", 130)
    pools = [{"role": "prefill", "gpu": "h100", "replicas": 2}, {"role": "decode", "gpu": "h100", "replicas": 3}]
    workload = {"arrivals": {"kind": "poisson", "rate": 20}, "requests": 60, "prompt": 900, "output": 40}
    scenario = scenario_from_dict({"model": "llama-3.1-8b", "fleet": {"pools": pools}, "workload": workload})
    small, large = simulate(scenario), simulate(scenario)
    write_result(small, tmp_path / "small", trace=True)
    monkeypatch.setattr(result_module, "_MANY_STEPS", 200)
    write_result(large, tmp_path / "large", trace=True)
    large.save(tmp_path / "saved")
    assert "steps" in small.__dict__ and "steps" not in large.__dict__
    assert len(small.steps["end"]) > 400
    for name in BASIC | {"trace.json.gz"}:
        assert (tmp_path / "small" / name).read_bytes() == (tmp_path / "large" / name).read_bytes(), name
    assert (tmp_path / "saved" / "steps.parquet").read_bytes() == (tmp_path / "small" / "steps.parquet").read_bytes()
    one = [{name: column.tolist() for name, column in table.items()} for table in small.step_tables(range(1, 4))]
    other = [{name: column.tolist() for name, column in table.items()} for table in large.step_tables(range(1, 4))]
    assert one == other and [set(table["replica"]) for table in one] == [{1}, {2}, {3}]
