"""No command replaces what it reads, whatever name the user gives it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from steelyard.cli import main
from steelyard.cli.outputs import keep_inputs
from steelyard.validate.capture import capture_files
from support.captures import LONE, capture

Run = Callable[[str], tuple[Any, str]]

SCENARIO: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "fleet": {"gpu": "h100"},
    "cost": {"source": "analytic"},
    "workload": {"arrivals": {"kind": "burst"}, "requests": 5, "prompt": 100, "output": 10},
}
POSTTRAIN: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 2, "group": 2},
    "rollout": [{"tp": 1, "replicas": 2}],
    "training": {"dp": 2},
    "steps": 1,
}
REQUEST = '{"timestamp": 0, "input_length": 10, "output_length": 5, "hash_ids": [1]}\n'

REPLACED = {
    "compare p.yaml --page p.yaml": "p.yaml",
    "compare p.json --page p.md": "p.json",
    "compare p.yaml --out c --page c/results.jsonl": "c/results.jsonl",
    "compare recorded.yaml --page turns.md": "turns.json",
    "compare results.yaml --out .": "results.jsonl",
    "simulate summary.json --out . --overwrite": "summary.json",
    "simulate trace.yaml --out . --overwrite": "events.jsonl",
    "validate cap --report cap/config.json": "cap/config.json",
    "validate cap --report linked/lone.workload.json": "linked/lone.workload.json",
    "validate cap --report hard.html": "hard.html",
    "validate cap --calibration host.json --report ./cap/../host.json": "cap/../host.json",
    "validate cap --profile perf --report perf/tp1/dense.csv": "perf/tp1/dense.csv",
    "validate bench/h100/m --trace w.jsonl --report w.jsonl": "w.jsonl",
    "validate bench/h100/m --trace w.jsonl --report bench/h100/m/vllm/meta.json": "bench/h100/m/vllm/meta.json",
    "calibrate cap --out cap/meta.json": "cap/meta.json",
    "calibrate cap --out cap/lone.steps.jsonl.gz": "cap/lone.steps.jsonl.gz",
    "fidelity cap --out cap/lone.requests.jsonl.gz": "cap/lone.requests.jsonl.gz",
    "fidelity cap bench --out workloads/w.jsonl": "workloads/w.jsonl",
}
"""Command lines, and the input that each would have replaced."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with inputs of all commands."""
    folder = tmp_path_factory.mktemp("inputs")
    for name in ("p.yaml", "p.json", "summary.json", "s.yaml"):
        data = POSTTRAIN if name.startswith("p") else SCENARIO
        (folder / name).write_text(yaml.safe_dump(data) if name.endswith("yaml") else json.dumps(data))
    for name, file in (("recorded.yaml", "turns.json"), ("results.yaml", "results.jsonl")):
        trajectories = {"file": file, "prompts": 1, "group": 1}
        (folder / name).write_text(yaml.safe_dump({**POSTTRAIN, "trajectories": trajectories}))
        (folder / file).write_text('{"half": "a line')
    (folder / "events.jsonl").write_text(REQUEST)
    (folder / "trace.yaml").write_text(yaml.safe_dump({**SCENARIO, "workload": {"trace": {"file": "events.jsonl"}}}))
    capture(folder / "cap", {"lone": LONE[:8]})
    (folder / "linked").symlink_to("cap")
    os.link(folder / "cap" / "meta.json", folder / "hard.html")
    (folder / "host.json").write_text("{}")
    others = ("perf/tp1/dense.csv", "w.jsonl", "workloads/w.jsonl", "c/notes.txt", "perf/old.html", "cap/host.json")
    bench = ("config.json", "vllm/meta.json", "vllm/requests.jsonl", "vllm/timeseries.csv")
    for name in (*others, *(f"bench/h100/m/{each}" for each in bench)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a copy of the inputs, for a command to spoil."""
    work = tmp_path / "work"
    shutil.copytree(made, work, symlinks=True)
    (work / "hard.html").unlink()
    os.link(work / "cap" / "meta.json", work / "hard.html")
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The program in this process: its exit code, and what it says on standard error."""

    def call(words: str) -> tuple[Any, str]:
        monkeypatch.setattr(sys, "argv", ["steelyard", *words.split()])
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code, capsys.readouterr().err

    return call


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("words", REPLACED)
def test_an_input_is_not_replaced(folder: Path, run: Run, words: str) -> None:
    before = contents(folder)
    code, said = run(words)
    *_, option, name = words.removesuffix(" --overwrite").split()
    assert said == f"error: {option} {Path(name)}: {REPLACED[words]} is an input of this command; choose another name\n"
    assert code == 2 and contents(folder) == before


def test_what_lies_beside_inputs_may_be_replaced(folder: Path, run: Run) -> None:
    for _ in range(2):  # the second time there is a page of the first
        assert run("simulate s.yaml --out . --overwrite --no-intervals")[0] == 0
        assert run("validate cap --report cap/page.html")[0] == 0
    keep_inputs("--out", [Path("cap/host.json")], capture_files(Path("cap")))
    keep_inputs("--report", [Path("perf/old.html")], [Path("perf"), Path("cap/meta.json")])
    keep_inputs("--report", [Path("perf/new.csv")], [Path("perf"), Path("nowhere"), Path("a\0b"), Path("x" * 5000)])
