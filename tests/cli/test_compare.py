"""``steelyard compare`` for serving: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from steelyard.cli import app
from steelyard.errors import UserError

SERVING: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "fleet": {"gpu": "h100"},
    "cost": {"source": "analytic"},
    "workload": {"arrivals": {"kind": "poisson", "rate": 5}, "requests": 20, "prompt": 300, "output": 30},
}
POSTTRAIN: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 2, "group": 2},
    "rollout": [{"tp": 1, "replicas": 2}],
    "training": {"dp": 2},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(yaml.safe_dump(SERVING))
    Path("b.yaml").write_text(yaml.safe_dump({**SERVING, "fleet": {"gpu": "h100", "tp": 2}}))
    Path("p.yaml").write_text(yaml.safe_dump(POSTTRAIN))
    return tmp_path


def run(*words: str) -> str:
    done = CliRunner().invoke(app, ["compare", *words], catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def test_it_prints_and_writes_a_page(folder: Path) -> None:
    said = run("a.yaml", "b.yaml", "--seeds", "3", "--page", "deep/page.html")
    assert said.startswith("b against a\n  fleet.tp: 1 -> 2\n") and said.endswith("page: deep/page.html\n")
    assert (folder / "deep/page.html").read_text().startswith("<!doctype html>")
    assert {path.name for path in folder.iterdir()} == {"a.yaml", "b.yaml", "p.yaml", "deep"}


def test_json_has_every_seed() -> None:
    found = json.loads(run("a.yaml", "b.yaml", "--seeds", "3", "--json", "--set", "seed=5"))
    assert [column["seeds"] for column in found["columns"]] == [[5, 6, 7]] * 2
    assert len(found["columns"][1]["by_seed"]["ttft.p95"]) == 3
    difference = found["differences"][0]["figures"]["gpus"]
    assert difference["difference"] == 1 and difference["relative"] == 1 and difference["verdict"] == "worse"
    assert found == json.loads(run("a.yaml", "b.yaml", "--seeds", "3", "--json", "--set", "seed=5", "--workers", "2"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("a.yaml", "compare: a.yaml is the only one"),
        ("a.yaml p.yaml", "a.yaml is for serving and p.yaml is for post-training; compare one kind at a time"),
        ("a.yaml b.yaml --modes split", "--modes: is for post-training, and a.yaml is for serving"),
        ("a.yaml b.yaml --no-rivals", "--rivals: is for post-training"),
        ("a.yaml b.yaml --out x", "--out: is for post-training"),
        ("p.yaml --costs", "--costs: is for serving, and p.yaml is for post-training"),
        ("a.yaml nothing.yaml", "nothing.yaml: no such file"),
        ("a.yaml b.yaml --page b.yaml", "--page b.yaml: b.yaml is an input"),
        ("a.yaml b.yaml --set fleet.tp=3", "fleet.tp"),
    ],
)
def test_what_is_refused(line: str, told: str, folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError) as caught:
        run(*line.split())
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
