"""The commands on logs: what they print, and one line for what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from steelyard.balance.log import Journal, is_event, read_event, read_header
from steelyard.cli import app, main
from steelyard.live.controller import Controller
from steelyard.posttrain.run import posttrain
from steelyard.scenario import posttrain_from_dict

SMALL: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 4},
    "mode": "asynchronous",
    "tail": "tail-batching",
    "rollout": [{"tp": 1, "replicas": 3}],
    "training": {"dp": 1},
    "steps": 3,
    "seed": 3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's scenario, its log, and a controller's store of the same events."""
    here = tmp_path_factory.mktemp("run")
    (here / "s.yaml").write_text(json.dumps(SMALL))
    with (here / "events.jsonl").open("w") as file:
        posttrain(posttrain_from_dict(SMALL), journal=Journal(file, "test"))
    header, *rows = [json.loads(line) for line in (here / "events.jsonl").read_text().splitlines()]
    for name in ("with.sqlite", "without.sqlite", "broken.sqlite"):
        controller = Controller.begin(here / name, read_header(header, "log").settings, lambda identity, command: None)
        controller.tell([read_event(row, "log").event for row in rows if is_event(row)])
        if name == "with.sqlite":
            controller.store.keep("scenario", json.dumps(SMALL))
        if name == "broken.sqlite":
            controller.store.keep("scenario", "[3]")
        controller.close()
    (here / "empty.jsonl").write_text("")
    (here / "other.jsonl").write_text('{"a": 1}\n')
    return here


def run(*words: str) -> list[str]:
    answer = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert answer.exit_code == 0, answer.output
    return answer.output.splitlines()


@pytest.fixture(autouse=True)
def there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What the program says of a mistake, in one line."""
    monkeypatch.setattr(sys, "argv", ["steelyard", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    told = capsys.readouterr().err
    assert stop.value.code == 2 and told.startswith("error: ") and told.count("\n") == 1
    return told.removeprefix("error: ").rstrip("\n")


def test_what_if_says_what_was_recorded_simulated_and_gained(folder: Path) -> None:
    changes = ["--what-if", "router=sticky", "--what-if", "seed=9"]
    said = run("replay", "events.jsonl", "--scenario", "s.yaml", *changes)
    assert said[0] == "3 training steps, 75 samples"
    assert said[1].split() == ["seconds", "a", "step", "tokens/s"]
    recorded, as_was, changed = [line.rsplit(maxsplit=3) for line in said[2:5]]
    assert (recorded[0], as_was[0]) == ("recorded", "simulated, as it was")
    assert changed[0] == "simulated, router=sticky, seed=9"
    assert recorded[1:] == as_was[1:] != changed[1:]
    assert said[5].startswith("gain: ") and said[5].endswith("simulated against simulated")
    assert said[6] == "the model's error: +0.00% seconds, simulated as it was against recorded"
    assert said[7].endswith("samples did not end in the log; they go on as others did that were longer")


def test_a_store_says_itself_which_scenario_it_was(folder: Path) -> None:
    said = run("replay", "with.sqlite", "--what-if", "router=sticky")
    assert said == run("replay", "events.jsonl", "--scenario", "s.yaml", "--what-if", "router=sticky")
    assert said == run("replay", "without.sqlite", "--scenario", "s.yaml", "--what-if", "router=sticky")


def test_without_what_if_commands_are_compared(folder: Path) -> None:
    assert run("replay", "events.jsonl")[-1] == run("replay", "with.sqlite")[-1] == "identical"


CHANGED = ("--what-if", "router=sticky")
WHAT_IF = ("--scenario", "s.yaml", *CHANGED)
MISTAKES = {
    ("replay", "events.jsonl", *CHANGED): "events.jsonl: does not have the run's scenario; give it with --scenario",
    ("replay", "without.sqlite", *CHANGED): "without.sqlite: does not have the run's scenario; give it with --scenario",
    ("replay", "broken.sqlite", *CHANGED): "broken.sqlite: scenario: must be a JSON object; give a scenario with",
    ("replay", "events.jsonl", "--scenario", "s.yaml"): "--scenario, --set: are for --what-if; say what to change",
    ("replay", "events.jsonl", "--scenario", "no.yaml", *CHANGED): "no.yaml: no such file",
    ("replay", "no.jsonl", *WHAT_IF): "no.jsonl: no such file",
    ("replay", "empty.jsonl", *WHAT_IF): "empty.jsonl: an empty log; a log begins with a header",
    ("replay", "other.jsonl", *WHAT_IF): "other.jsonl:1: not a log of the decision core",
    (
        "replay",
        "events.jsonl",
        "--set",
        "router=heddle",
        *WHAT_IF,
    ): "s.yaml: router: heddle in the scenario, and cost-aware",
    ("explain", "no.jsonl"): "no.jsonl: no such file",
    ("explain", "empty.jsonl"): "empty.jsonl: an empty log; a log begins with a header",
    ("explain", "other.jsonl"): "other.jsonl:1: not a log of the decision core",
    ("explain", "events.jsonl", "--trajectory", "x"): "events.jsonl: says nothing of a trajectory 'x'",
    ("explain", "events.jsonl", "--step", "77"): "events.jsonl: says nothing of step 77",
    ("explain", "events.jsonl", "--last", "0"): "steelyard explain: --last: must be greater than or equal to 1",
    ("explain", "events.jsonl", "--timeline", "t.json", "--last", "3"): "--timeline: shows the whole log; leave out",
    ("explain", "events.jsonl", "--timeline", "events.jsonl"): "--timeline events.jsonl: ",
    ("explain", "events.jsonl", "--timeline", "."): ".: is a folder; give the name of a file",
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_is_told_in_one_line(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(monkeypatch, capsys, *words).startswith(MISTAKES[words])


def test_decisions_are_explained_a_line_each(folder: Path) -> None:
    said = run("explain", "events.jsonl")
    assert said[0] == "0.0 s: replica 0 is up: TP1, 256 seats, 6,167,728 tokens of cache"
    assert run("explain", "events.jsonl", "--last", "5") == said[-5:]
    assert run("explain", "with.sqlite") == said
    rows = [json.loads(line) for line in run("explain", "events.jsonl", "--json")]
    assert [f"{row['at']:,.1f} s: {row['sentence']}" for row in rows] == said
    assert {key: rows[3][key] for key in ("kind", "subject", "step")} == {
        "kind": "weights",
        "subject": "weights",
        "step": 0,
    }


def test_some_of_them_can_be_asked_for(folder: Path) -> None:
    said = run("explain", "events.jsonl")
    name = next(line.split()[3] for line in said if "has ended" in line)
    story = run("explain", "events.jsonl", "--trajectory", name)
    assert "begins in group" in story[0] and any("has ended" in line for line in story)
    assert all(f"trajectory {name} " in line or "trains on" in line for line in story)
    step = run("explain", "events.jsonl", "--step", "1")
    assert set(step) < set(said) and any("step 1 trains on" in line for line in step)
    assert not any("step 2 trains on" in line for line in step)


def test_a_name_cannot_command_the_terminal(folder: Path, tmp_path: Path) -> None:
    text = (folder / "events.jsonl").read_text().replace("step-0/search-50013/0", "a\\u001b[31m\\u000ab")
    (tmp_path / "e.jsonl").write_text(text)
    said = run("explain", str(tmp_path / "e.jsonl"), "--last", "100000")
    assert any("trajectory a\\x1b[31m\\nb begins" in line for line in said)
    assert len(said) == len(run("explain", "events.jsonl"))


def test_a_timeline_is_written(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.json"
    assert run("explain", "with.sqlite", "--timeline", str(path)) == [f"written to {path}"]
    assert {each["ph"] for each in json.loads(path.read_text())["traceEvents"]} == {"M", "b", "e", "C", "X", "i"}
