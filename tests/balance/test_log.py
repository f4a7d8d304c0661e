"""Logs of the core: written before anything is decided, read back bit for bit, replayed to the byte."""

from __future__ import annotations

import io
import json
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.commands import Place
from steelyard.balance.encoding import decode, decode_kind, encode
from steelyard.balance.events import Begun, Called, ReplicaUp
from steelyard.balance.inbox import Envelope
from steelyard.balance.kinds import Command, Event
from steelyard.balance.log import Header, Journal, event_line, read_event
from steelyard.balance.settings import CoreSettings
from steelyard.balance.tail import Divided, OverSampling, PartialRollout, Reconfiguring, Repacking, TailBatching
from steelyard.errors import UserError
from steelyard.posttrain.replay import ReplayVerdict, replay_log
from steelyard.posttrain.run import posttrain
from steelyard.records import Trajectory, Turn
from steelyard.scenario import posttrain_from_dict
from support.cluster import WIDE, Cluster, settings
from support.engine_worlds import settled

KINDS: dict[str, type] = {kind.__name__: kind for kind in (*get_args(Event), *get_args(Command))}


def test_every_kind_has_a_name_of_its_own() -> None:
    assert len(KINDS) == len(get_args(Event)) + len(get_args(Command))


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
@settled(10)
def test_every_kind_is_read_back_bit_for_bit(kind: str, data: st.DataObject) -> None:
    drawn = data.draw(st.from_type(KINDS[kind]).filter(_writable))
    text = json.dumps(encode(drawn, kind=True), allow_nan=False)
    assert decode_kind(KINDS, json.loads(text), "here") == drawn


def _writable(value: Any) -> bool:
    """No event holds a NaN, which is unlike itself."""
    try:
        json.dumps(encode(value), allow_nan=False)
    except ValueError:
        return False
    return bool(value == value)


@pytest.mark.parametrize(
    "tail",
    [
        *(None, OverSampling(), TailBatching(), PartialRollout(9), Divided(7), Repacking()),
        *(Reconfiguring(), Reconfiguring(few=0.5, wide=WIDE)),
    ],
)
def test_settings_are_read_back(tail: Any) -> None:
    made = settings(tail)
    assert decode(CoreSettings, json.loads(json.dumps(encode(made))), "here") == made


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"kind": "Cald"}, "kind is 'Cald'; did you mean .*'Called'"),
        ({"kind": "Called", "at": 1.0, "trajectory": "a", "epoch": 1}, "Called: generated is missing"),
        ({"kind": "Called", "at": "x", "trajectory": "a", "epoch": 1, "generated": 3}, "at: must be float .found 'x'"),
        ({"kind": "Called", "at": 1, "trajectory": "a", "epoch": True, "generated": 3}, "epoch: must be int"),
        ({"kind": "Called", "at": 1, "trajectory": "a", "epoch": 1, "generated": 3, "more": 0}, "Called has no 'more'"),
        ({"kind": "Returned", "at": 1, "trajectory": "a", "epoch": 1, "turn": [4]}, "turn: must be a JSON object"),
    ],
)
def test_a_line_that_is_wrong_is_named_with_its_key(row: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"log:3: .*{message}"):
        read_event({"id": [0, 0], **row}, "log:3")


def test_an_event_is_in_the_file_before_it_is_decided(tmp_path: Path) -> None:
    """So that a driver that dies while it acts has it written down."""
    path = tmp_path / "log"
    with path.open("w", encoding="utf-8") as file:
        journal = Journal(file, "1.2.3")
        journal.begin(settings())
        journal.event(Envelope(0, 0, ReplicaUp(0.0, 0, 1, 4, 1000)))
        there = path.read_text().splitlines()
    assert json.loads(there[0])["package"] == "1.2.3"
    assert there[1] == event_line(Envelope(0, 0, ReplicaUp(0.0, 0, 1, 4, 1000)))


# Replays of files


def written(path: Path, events: int = 200, seed: int = 3) -> list[str]:
    """The lines of a cluster's log."""
    made, file = settings(OverSampling(1.5), staleness=2, synchronous=False, lead=1), io.StringIO()
    cluster, journal = Cluster(made.core(), Random(seed)), Journal(file, "1.0")
    cluster.begin()
    for _ in range(events):
        cluster.happen()
    journal.begin(made)
    for envelope, commands in cluster.log:
        journal.event(envelope)
        journal.commands(commands)
    path.write_text(file.getvalue())
    return file.getvalue().splitlines(keepends=True)


def test_a_log_is_replayed_to_the_byte(tmp_path: Path) -> None:
    lines = written(tmp_path / "log")
    verdict = replay_log(tmp_path / "log")
    assert verdict.difference is None and not verdict.cut
    assert verdict.events + verdict.commands + 1 == len(lines)


@given(st.integers(0, 10_000), st.integers(1, 60))
@settled(25)
def test_a_log_that_was_cut_off_is_replayed_as_far_as_it_goes(
    tmp_path_factory: pytest.TempPathFactory, where: int, part: int
) -> None:
    """As kill -9 leaves it: up to any line, and some of the next."""
    path = tmp_path_factory.mktemp("cut") / "log"
    lines = written(path, events=60)
    cut = 1 + where % (len(lines) - 1)
    path.write_text("".join(lines[:cut]) + lines[cut].rstrip("\n")[: min(part, len(lines[cut]) - 2)])
    assert replay_log(path).difference is None


def test_the_first_difference_is_shown(tmp_path: Path) -> None:
    lines = written(tmp_path / "log")
    place = next(i for i, line in enumerate(lines) if i > 100 and '"Place"' in line)
    lines[place] = lines[place].replace('"replica":', '"replica":9')
    (tmp_path / "log").write_text("".join(lines))
    verdict = replay_log(tmp_path / "log")
    assert verdict.difference is not None and verdict.difference.logged != verdict.difference.decided
    assert int(verdict.difference.where.rpartition(":")[2]) <= place + 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "an empty file"),
        ('{"id":[0,0]}\n', "not a log of the decision core"),
        ('{"log":"steelyard","schema":9}\n', "schema is 9; this version reads logs of schema 1"),
        ("[1]\n", "must be a JSON object"),
        ("{\n{}\n", "log:1: not valid JSON"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(UserError, match=message):
        replay_log(tmp_path / "log")


# Logs of whole runs


def logged(tmp_path: Path, **changes: Any) -> ReplayVerdict:
    small = {
        "model": "qwen2.5-0.5b",
        "gpu": "a800",
        "trajectories": {"preset": "search", "prompts": 8, "group": 4},
        "mode": "one-step-off",
        "rollout": [{"tp": 1, "replicas": 4}, {"tp": 2, "replicas": 1}],
        "training": {"dp": 2},
        "steps": 2,
    }
    scenario = posttrain_from_dict({**small, **changes})
    with (tmp_path / "log").open("w", encoding="utf-8") as file:
        noted = posttrain(scenario, journal=Journal(file, "1.0")).summary
    assert noted == posttrain(scenario).summary, "keeping a journal changed something"
    return replay_log(tmp_path / "log")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"router": "c-mlfq", "estimator": "trie"},
        {"router": "heddle", "tail": "over-sampling"},
        {"tail": "repack", "mode": "split"},
        {"tail": {"kind": "reconfigure", "tp": 2, "few": 0.5}, "mode": "split"},
        {"tail": "tail-batching", "streaming": True},
        {"tail": {"kind": "divided", "chunk": 128}},
        {"estimator": "oracle"},
        {"estimator": "noisy"},
        {"planner": "search", "steps": 5},
        {"planner": "libra-published", "steps": 4},
        {"planner": "simulated", "pool": "payoff", "steps": 6},
        {"planner": "oracle", "steps": 3},
        {"pool": "thresholds", "steps": 8, "training": {"dp": 1}},
    ],
    ids=str,
)
def test_a_simulated_run_is_replayed_to_the_byte(tmp_path: Path, changes: dict[str, Any]) -> None:
    verdict = logged(tmp_path, **changes)
    assert verdict.difference is None and not verdict.cut and not verdict.dropped
    text = (tmp_path / "log").read_text()
    assert text.count('"kind":"Ended"') >= 2 * 8 * 4 and text.count('"kind":"TrainOn"') >= 2
    if "planner" in changes:
        assert '"kind":"PlanWanted"' in text and '"kind":"PlansSimulated"' in text


def test_what_a_planner_asked_and_was_answered_is_in_the_log(tmp_path: Path) -> None:
    logged(tmp_path, planner="simulated", steps=3)
    rows = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    asked = {row["ask"]: row["questions"] for row in rows if row.get("kind") == "Simulate"}
    answered = {row["ask"]: row["seconds"] for row in rows if row.get("kind") == "PlansSimulated"}
    assert asked and set(asked) == set(answered)
    assert all(len(asked[ask]) == len(answered[ask]) for ask in asked)
    asked_for = {question.get("figure", "train") for questions in asked.values() for question in questions}
    assert {"train", "sync", "least", "rollout"} <= asked_for


def test_a_turn_and_a_truth_pass_through_a_line() -> None:
    turn = Turn(3, "shell", "error", 4, 0.1)
    truth = Trajectory("t", "task", "p", (turn,), 9)
    for event in (Begun(0.5, "t", "p", 9, 1, (turn,), 2, 3, "7", truth), Called(1e-17, "t", 4, 5)):
        envelope = Envelope(2, 11, event)
        assert read_event(json.loads(event_line(envelope)), "here") == envelope
    assert decode(Place, encode(Place("t", 1)), "here") == Place("t", 1)
    assert decode(Header, encode(Header(1, "x", settings())), "here") == Header(1, "x", settings())
