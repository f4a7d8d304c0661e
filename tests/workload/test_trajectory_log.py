"""Trajectories read back from a log of events: a live system's as well as that of a simulated run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from steelyard.cli import app
from steelyard.errors import UserError
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.run import drive
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.records import Turn
from steelyard.scenario import load_posttrain
from steelyard.workload.trajectories import read_trajectories
from support.paths import EXAMPLES
from support.whole_record import WholeRecord, kept

SEARCH = EXAMPLES / "posttrain" / "search-48.yaml"


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def begun(name: str, tokens: int, at: float = 0.0, version: int = 3) -> dict[str, Any]:
    return {"kind": "Begun", "at": at, "trajectory": name, "prompt": "p", "prompt_tokens": tokens, "version": version}


def returned(name: str, at: float, **turn: Any) -> dict[str, Any]:
    return {"kind": "Returned", "at": at, "trajectory": name, "turn": {"generated": 5, "tool": "ls", **turn}}


def ended(name: str, at: float) -> dict[str, Any]:
    return {"kind": "Ended", "at": at, "trajectory": name, "turn": {"generated": 9, "tool": None}}


def test_turns_that_are_told_one_by_one_make_a_trajectory(tmp_path: Path) -> None:
    called = {"kind": "Called", "at": 2.0, "trajectory": "a", "generated": 5}
    path = write(
        tmp_path / "log",
        {"kind": "ReplicaUp", "at": 0.0, "replica": 0, "tp": 1, "seats": 4, "tokens": 1000},
        begun("a", 100),
        begun("never ends", 100),
        {"kind": "Place", "trajectory": "a", "replica": 0, "priority": 0, "source": None, "cache": "keep"},
        called,
        returned("a", 4.5, outcome="error", returned=7),
        {**called, "at": 5.0},
        returned("a", 9.0, latency=1.25),
        ended("began before the log did", 9.5),
        ended("a", 10.0),
    )
    (read,) = read_trajectories(path)
    assert (read.id, read.prompt, read.prompt_tokens, read.policy) == ("a", "p", 100, "version-3")
    assert read.turns == (Turn(5, "ls", "error", 7, 2.5), Turn(5, "ls", latency=1.25), Turn(9))


def test_one_that_was_stopped_goes_on_and_one_that_begins_anew_does_not(tmp_path: Path) -> None:
    stopped = {"kind": "Aborted", "at": 3.0, "trajectory": "a"}
    on = {**begun("a", 100, 4.0, version=4), "turns": [{"generated": 5, "tool": "ls", "latency": 1.0}], "fresh": 3}
    resumed = [begun("a", 100), returned("a", 2.0), stopped, on, ended("a", 6.0)]
    (read,) = read_trajectories(write(tmp_path / "log", *resumed))
    assert (len(read.turns), read.prompt_tokens, read.policy) == (2, 100, "version-3")
    anew = [begun("a", 100), returned("a", 2.0), stopped, begun("a", 100, 4.0, version=4), ended("a", 6.0)]
    (read,) = read_trajectories(write(tmp_path / "log", *anew))
    assert (len(read.turns), read.policy) == (1, "version-4")


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ({"kind": "Ended", "at": 1.0, "trajectory": "a"}, "log:2: turn is missing"),
        ({"kind": "Ended", "at": 1.0}, "log:2: Ended: trajectory is missing"),
        ({**begun("b", 1), "turns": [3]}, r"log:2: turns\[0\]: must be an object"),
        ({"kind": "Begun", "trajectory": "b", "prompt_tokens": 3}, "log:2: Begun: prompt is missing"),
        ({**ended("a", 1.0), "turn": {"generated": "x"}}, "log:2: turn: generated must be a whole number"),
        ({**ended("a", 1.0), "at": "now"}, "log:2: at must be a number"),
    ],
)
def test_a_bad_line_says_where(tmp_path: Path, row: dict[str, Any], wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        read_trajectories(write(tmp_path / "log", begun("a", 1), row))


def test_a_simulated_runs_log_is_a_workload(tmp_path: Path) -> None:
    """What was rolled out is read back turn for turn, and can be rolled out again."""
    changes = ["trajectories={preset: search, prompts: 4, group: 4}", "steps=2"]
    asked = [part for each in changes for part in ("--set", each)]
    ran = CliRunner().invoke(app, ["posttrain", str(SEARCH), "--out", str(tmp_path / "run"), "--log", *asked])
    assert ran.exit_code == 0, ran.output
    read = read_trajectories(tmp_path / "run" / "events.jsonl")
    setup = set_up_posttrain(load_posttrain(SEARCH, changes))
    record = kept(Loop(setup, core_settings(setup).core(), record=WholeRecord()).run())
    samples = [each.trajectory for each in record.samples]
    assert [(each.id, each.prompt, each.prompt_tokens, each.turns) for each in read] == [
        (each.id, each.prompt, each.prompt_tokens, each.turns) for each in samples
    ]
    source = f"trajectories={{file: {tmp_path / 'run' / 'events.jsonl'}, prompts: 4, group: 4}}"
    again = drive(load_posttrain(SEARCH, [source, "steps=1"])).summary
    assert again["samples"] == 16
