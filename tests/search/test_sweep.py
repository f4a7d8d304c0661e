"""Sweeps: the whole grid, the same bytes with any number of workers, and nothing run twice, whatever ended a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from steelyard.cli import app
from steelyard.errors import UserError
from steelyard.files.tables import read_columns
from steelyard.report.sweep import SWEEP_FILES, sweep_lines, sweep_page
from steelyard.scenario.load import ScenarioFile
from steelyard.search import sweep as module
from steelyard.search.grid import parse_axes
from steelyard.search.sweep import REFUSED, Row, SweepPlan, sweep_rows
from steelyard.sim.run import simulate
from support.report_text import charts_of
from support.sizing import SMALL

OVER = ["fleet.tp=1,2", "workload.arrivals.rate=4:12:3"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump(SMALL))
    return path


def planned(file: Path, *over: str, capacity: bool = False) -> SweepPlan:
    return SweepPlan(ScenarioFile(file), (), parse_axes(over or OVER), capacity)


def run(file: Path, out: str, *words: str, over: Sequence[str] = OVER) -> Any:
    given = [word for each in over for word in ("--over", each)]
    return CliRunner().invoke(app, ["sweep", str(file), *given, "--out", str(file.parent / out), *words])


def test_each_point_is_what_simulate_says(file: Path, tmp_path: Path) -> None:
    plan = planned(file)
    rows = sweep_rows(plan, tmp_path / "j.jsonl")
    assert len(rows) == 6
    for point, row in zip(plan.points, rows, strict=True):
        summary = simulate(plan.scenario(point)).summary
        assert row["ttft_p95"] == summary.ttft.p95 and row["gpus"] == summary.gpus
        assert row["output_tokens_per_s"] == summary.throughput.output_tokens_per_s
        assert row["carried"] == (all(each.met for each in summary.slo.values()) and summary.unsteady is None)


def test_the_same_bytes_with_any_number_of_workers(file: Path) -> None:
    for out, workers in (("a", "0"), ("b", "1"), ("c", "3")):
        done = run(file, out, "--workers", workers)
        assert done.exit_code == 0, done.output
    for name in SWEEP_FILES:
        contents = {(file.parent / out / name).read_bytes() for out in "abc"}
        assert len(contents) == 1, name


def test_the_table_has_a_row_for_each_point(file: Path) -> None:
    assert run(file, "out", over=["fleet.tp=1,3", "workload.arrivals.rate=4,8"]).exit_code == 0
    table = read_columns(file.parent / "out" / "sweep.parquet")
    assert table["fleet.tp"].tolist() == [1, 1, 3, 3] and table["workload.arrivals.rate"].tolist() == [4, 8, 4, 8]
    assert np.isfinite(table["ttft_p95"][:2]).all() and np.isnan(table["ttft_p95"][2:]).all()
    assert table[REFUSED][0] == "" and "cannot be split 3 ways" in table[REFUSED][2]
    assert table["carried"].tolist()[2:] == [False, False]
    figures = json.loads((file.parent / "out" / "sweep.json").read_text())
    assert figures["over"] == {"fleet.tp": [1, 3], "workload.arrivals.rate": [4, 8]}
    assert [point["at"]["fleet.tp"] for point in figures["points"]] == [1, 1, 3, 3]


def test_values_of_any_kind_have_a_column(file: Path, tmp_path: Path) -> None:
    over = ["workload.output={kind: fixed, tokens: 5},20", "fleet.gpu=h100,h200", "slo.ttft_p95=0.1,1"]
    assert run(file, "out", over=over).exit_code == 0
    table = read_columns(tmp_path / "out" / "sweep.parquet")
    assert table["workload.output"].tolist()[:1] == ['{"kind":"fixed","tokens":5}']
    assert set(table["fleet.gpu"]) == {"h100", "h200"} and table["slo.ttft_p95"].dtype == np.float64


def test_points_that_cannot_work_are_rows_unless_all_are(file: Path, tmp_path: Path) -> None:
    rows = sweep_rows(planned(file, "fleet.tp=1,3,64", "fleet.replicas=1,-1"), tmp_path / "j.jsonl")
    assert [REFUSED in row for row in rows] == [False, True, True, True, True, True]
    assert "--over fleet.replicas=-1" in rows[1][REFUSED] and "\n" not in rows[1][REFUSED]
    with pytest.raises(UserError, match=r"no point of the sweep can work; the first of 2: .*tp=3 does not fit"):
        sweep_rows(planned(file, "fleet.tp=3,64"), tmp_path / "new" / "j.jsonl")
    assert not (tmp_path / "new").exists()


def test_capacity_of_each_point(file: Path, tmp_path: Path) -> None:
    rows = sweep_rows(planned(file, "fleet.replicas=1,2", capacity=True), tmp_path / "j.jsonl")
    assert 1.5 < rows[1]["rate"] / rows[0]["rate"] < 3 and [row["gpus"] for row in rows] == [1, 2]
    assert rows[0]["ttft_p95"] <= 0.3 and rows[0]["usd_per_million_output_tokens"] > 0


class Counted:
    """Counts the points that are run, and may stop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int = 1000) -> None:
        self.points: list[Any] = []
        self._most, self._own = most, module.measured
        monkeypatch.setattr(module, "measured", self)

    def __call__(self, plan: SweepPlan, point: Any) -> Row:
        if len(self.points) == self._most:
            raise KeyboardInterrupt
        self.points.append(point)
        return self._own(plan, point)


def test_an_interrupted_sweep_goes_on_where_it_was(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(file, "whole").exit_code == 0
    with monkeypatch.context() as patch:
        first = Counted(patch, most=2)
        done = run(file, "parts")
        assert done.exit_code == 130 and "the same command goes on" in done.output
        assert not (file.parent / "parts" / "sweep.json").exists()
    second = Counted(monkeypatch)
    assert run(file, "parts").exit_code == 0
    assert len(first.points) == 2 and len(second.points) == 4
    for name in SWEEP_FILES:
        assert (file.parent / "parts" / name).read_bytes() == (file.parent / "whole" / name).read_bytes()
    assert run(file, "parts").exit_code == 0 and len(second.points) == 4, "nothing is left to run"
    more = run(file, "parts", over=[OVER[0], "workload.arrivals.rate=4,8,12,16"])
    assert more.exit_code == 0 and len(second.points) == 6, "a wider grid runs only what is new"


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("workers", ["0", "2"])
def test_kill_9_and_the_same_command_again(file: Path, workers: str) -> None:
    over = ["fleet.tp=1,2,4", "workload.arrivals.rate=4:16:7", "workload.requests=1500"]
    words = [sys.executable, "-m", "steelyard", "sweep", str(file), "--workers", workers]
    words += [word for each in over for word in ("--over", each)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    journal = file.parent / "killed" / "journal.jsonl"
    process = subprocess.Popen([*words, "--out", str(file.parent / "killed")], env=env)
    while len(lines_of(journal)) < 4 and process.poll() is None:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = lines_of(journal)
    assert 4 <= len(before) < 22 and not (file.parent / "killed" / "sweep.json").exists()
    for out in ("killed", "whole"):
        subprocess.run([*words, "--out", str(file.parent / out)], env=env, check=True, stdout=subprocess.DEVNULL)
    for name in SWEEP_FILES:
        assert (file.parent / "killed" / name).read_bytes() == (file.parent / "whole" / name).read_bytes(), name
    keys = [json.loads(line)["key"] for line in lines_of(journal)[1:]]
    assert len(keys) == len(set(keys)) == 21, "no point was run twice"


def test_a_killed_worker_loses_nothing_of_the_others(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, flag = module.measured, file.parent / "killed"

    def once(plan: SweepPlan, point: Any) -> Row:
        if not flag.exists() and lines_of(file.parent / "out" / "journal.jsonl")[2:]:
            flag.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return own(plan, point)

    monkeypatch.setattr(module, "measured", once)
    done = run(file, "out", "--workers", "2")
    assert isinstance(done.exception, UserError) and "a worker process was ended from outside" in str(done.exception)
    before = lines_of(file.parent / "out" / "journal.jsonl")
    assert len(before) >= 3
    assert run(file, "out", "--workers", "2").exit_code == 0
    assert lines_of(file.parent / "out" / "journal.jsonl")[: len(before)] == before
    assert run(file, "whole").exit_code == 0
    assert (file.parent / "out" / "sweep.json").read_bytes() == (file.parent / "whole" / "sweep.json").read_bytes()


def test_the_journal_of_another_scenario_is_refused(file: Path) -> None:
    assert run(file, "out").exit_code == 0
    file.write_text(yaml.safe_dump({**SMALL, "seed": 5}))
    with pytest.raises(UserError, match=r"journal\.jsonl: a journal of 'sweep of small \(\w+\)', not of"):
        sweep_rows(planned(file), file.parent / "out" / "journal.jsonl")


def test_a_folder_of_its_own_by_default(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    for over in (OVER, OVER, ["fleet.tp=1,2"]):
        words = [word for each in over for word in ("--over", each)]
        assert CliRunner().invoke(app, ["sweep", "s.yaml", *words]).exit_code == 0
    assert len(list((file.parent / "runs").iterdir())) == 2


def test_nothing_is_written_over_the_scenario(file: Path) -> None:
    named = file.parent / "sweep.json"
    named.write_text(json.dumps(SMALL))
    with pytest.raises(UserError, match=r"sweep\.json is an input of this command"):
        CliRunner().invoke(
            app, ["sweep", str(named), "--over", "fleet.tp=1,2", "--out", str(file.parent)], catch_exceptions=False
        )


@pytest.mark.parametrize("over", [OVER[:1], OVER, [*OVER, "engine.max_num_seqs=16,32", "seed=1,2"]], ids=len)
def test_the_page_has_a_chart_for_each_combination(file: Path, tmp_path: Path, over: list[str]) -> None:
    plan = planned(file, *over)
    rows = sweep_rows(plan, tmp_path / "j.jsonl", workers=2)
    page = sweep_page(plan, rows)
    groups = 4 if len(over) == 4 else 1
    charts = charts_of(page)
    assert len(charts) == 4 * groups and page.count("<h3>") == (groups if groups > 1 else 0)
    marked = [len(each["x"]) for chart in charts.values() for each in chart["marks"] if each["kind"] == "dots"]
    assert sum(marked) == 4 * len(rows)
    assert sweep_lines(plan, rows)[0].startswith(f"best of {len(rows)} points: fleet.tp=1")


def test_fleets_of_different_sizes_are_compared_per_gpu(file: Path) -> None:
    """Four replicas carry more than one, but not on each GPU behind a router that does not look at load."""
    rows = [
        {"gpus": gpus, "rate": rate, "output_tokens_per_s_per_gpu": each, "carried": True}
        for gpus, rate, each in ((1, 10.0, 300.0), (4, 36.0, 270.0))
    ]
    plan = planned(file, "fleet.replicas=1,4", capacity=True)
    told = "fleet.replicas=1: 10 requests/s, 300 output tokens/s per GPU"
    assert sweep_lines(plan, rows) == [f"best of 2 points: {told}"]
    rows[1]["gpus"] = 1
    assert "fleet.replicas=4: 36 requests/s" in sweep_lines(plan, rows)[0]
    rows = [{**row, "carried": False} for row in rows]
    assert sweep_lines(plan, rows)[0] == "no point of 2 meets the limits"
