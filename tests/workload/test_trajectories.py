"""Trajectory files: what is read from each form, and what is said about a line that cannot be."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from steelyard.errors import UserError
from steelyard.records import Trajectory, Turn
from steelyard.workload.trajectories import read_trajectories
from support.paths import SHARED

TRAJECTORIES = SHARED / "trajectories"
shared = pytest.mark.skipif(not TRAJECTORIES.is_dir(), reason="the shared data folder is not there")

OWN: dict[str, Any] = {
    "id": "a",
    "prompt": "p1",
    "task": "t1",
    "prompt_tokens": 40,
    "policy": "step-3",
    "end": "submitted",
    "turns": [
        {"generated": 10, "tool": "search", "outcome": "timeout", "returned": 700, "latency": 1.5},
        {"generated": 30, "tool": "submit"},
        {"generated": 5},
    ],
}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_our_own_form(tmp_path: Path) -> None:
    (read,) = read_trajectories(write(tmp_path / "x.jsonl", OWN))
    turns = (Turn(10, "search", "timeout", 700, 1.5), Turn(30, "submit"), Turn(5))
    assert read == Trajectory("a", "p1", "t1", turns, 40, "step-3", "submitted")
    assert read.generated == 45
    assert read.left() == [35, 5, 0]


def test_the_form_of_swe_agent(tmp_path: Path) -> None:
    """Named by its line: a name made of the policy would tell an estimator who it was."""
    row = {
        "policy": "p",
        "task": "t",
        "exit": None,
        "turns": [{"generated": 1, "tool": "ls", "returned": 2, "status": "error"}],
    }
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(row) + "\n\n" + json.dumps(row) + "\n").encode()))
    first, second = read_trajectories(path)
    assert first == Trajectory("line-1", "t", "t", (Turn(1, "ls", "error", 2),), policy="p")
    assert second.id == "line-3"


def test_a_session_in_the_order_of_its_calls(tmp_path: Path) -> None:
    row = {"agent": "a", "session": "s", "calls": [[30, 50, 4], [10, 20, 5], [20, 100, 6]]}
    (read,) = read_trajectories(write(tmp_path / "x.jsonl", row))
    assert read.turns == (Turn(5, "call", returned=75), Turn(6, "call", returned=0), Turn(4))
    assert read.prompt_tokens == 20


def turn(**changed: Any) -> dict[str, Any]:
    return {**OWN, "turns": [OWN["turns"][0], {"generated": 1, **changed}]}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("{", "x.jsonl:2: not valid JSON"),
        ("[1]", "x.jsonl:2: must be a JSON object"),
        ({"task": "t"}, "x.jsonl:2: turns is missing"),
        ({"task": "t", "turns": []}, "x.jsonl:2: turns must be a list of at least one turn"),
        ({"turns": [{"generated": 1}]}, "x.jsonl:2: task is missing"),
        ({**OWN, "task": ["t"]}, "x.jsonl:2: task must be text, not empty (found ['t'])"),
        ({**OWN, "turns": [3]}, "x.jsonl:2: turns[0]: must be an object"),
        ({**OWN, "turns": [{}]}, "x.jsonl:2: turns[0]: generated is missing"),
        (turn(generated=-1), "x.jsonl:2: turns[1]: generated must be a whole number of tokens"),
        (turn(returned=1.5), "x.jsonl:2: turns[1]: returned must be a whole number of tokens"),
        (turn(outcome="timout"), "x.jsonl:2: turns[1]: outcome is 'timout'; did you mean 'timeout'?"),
        (turn(latency="1s"), "x.jsonl:2: turns[1]: latency must be a number"),
        (OWN, "x.jsonl:2: id 'a' is taken by"),
        ({"calls": []}, "x.jsonl:2: calls must be a list of at least one call"),
        ({"calls": [[1, 2]]}, "x.jsonl:2: calls[0]: must be [microseconds, prompt tokens, output tokens]"),
    ],
)
def test_a_mistake_is_named_with_its_line(row: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_trajectories(write(tmp_path / "x.jsonl", OWN, row))
    assert says in str(caught.value)


def test_an_empty_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no trajectories"):
        read_trajectories(write(tmp_path / "x.jsonl"))


@shared
def test_swe_agent_java() -> None:
    path = TRAJECTORIES / "swe-agent-java.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    read = read_trajectories(path)
    assert len(read) == len(rows) == 198
    assert [each.generated for each in read] == [sum(turn["generated"] for turn in row["turns"]) for row in rows]
    assert len({each.task for each in read}) == 40
    assert {turn.outcome for each in read for turn in each.turns} == {"ok", "error", "timeout"}


@shared
def test_agent_sessions() -> None:
    path = TRAJECTORIES / "agent-sessions.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    read = read_trajectories(path)
    assert [each.generated for each in read] == [sum(call[2] for call in row["calls"]) for row in rows]
    assert [len(each.turns) for each in read] == [len(row["calls"]) for row in rows]
