"""Logs of all parts of the core: written as things happen, read back, replayed to the byte."""

from __future__ import annotations

import io
import json
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.balance.admission import Admission
from steelyard.balance.estimate import Oracle
from steelyard.balance.log import Command, Decider, Event, Journal, Part, read_log, replay, write_log
from steelyard.balance.plan import Measured, Plan, Search, Searching, State
from steelyard.balance.plan.asked import Answering, Asked, Columns
from steelyard.balance.rollouts import Rollouts
from steelyard.balance.tail import Tail
from steelyard.errors import UserError
from steelyard.posttrain.core import rollout_core
from steelyard.posttrain.foresight import Foresight
from steelyard.posttrain.run import posttrain
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.posttrain.tails import policy_of
from steelyard.scenario import posttrain_from_dict
from steelyard.scenario.posttrain import PosttrainScenario
from support import admission_world as admission
from support import plan_world as plans
from support import pool_world as pools
from support import tail_world as tails


def journal_of(part: Part, log: list[tuple[Any, list[Any]]]) -> str:
    file = io.StringIO()
    journal = Journal(file)
    for event, commands in log:
        journal.note(part, event, commands)
    return file.getvalue()


def replayed(folder: Path, text: str, parts: dict[Part, Decider]) -> str:
    """A log through a file, then what other parts make of its events."""
    (folder / "log").write_text(text)
    write_log(folder / "again", replay(read_log(folder / "log"), parts))
    return (folder / "again").read_text()


def test_every_kind_has_a_name_of_its_own_and_is_an_event_or_a_command() -> None:
    kinds = [*get_args(Event), *get_args(Command)]
    assert len({kind.__name__ for kind in kinds}) == len(kinds)


def test_a_planners_whole_state_is_in_the_log() -> None:
    assert [each.name for each in fields(Asked)] == [each.name for each in fields(State)]
    assert [each.name for each in fields(Columns)] == [each.name for each in fields(Measured)]


seeds = st.integers(0, 2**32)
few = settings(max_examples=8, deadline=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.mark.parametrize("policy", tails.POLICIES)
@given(seeds)
@few
def test_rounds_are_replayed_to_the_byte(folder: Path, policy: str, seed: int) -> None:
    world = tails.World(tails.POLICIES[policy](), Random(seed))
    world.next_round()
    for _ in range(150):
        world.happen(faults=True)
    text = journal_of("tail", world.log)
    assert replayed(folder, text, {"tail": Tail(tails.POLICIES[policy](), Rollouts())}) == text


@given(seeds, st.integers(0, 3), st.integers(1, 3))
@few
def test_admission_is_replayed_to_the_byte(folder: Path, seed: int, eta: int, size: int) -> None:
    world = admission.World(Random(seed), eta, size)
    for _ in range(200):
        world.happen(faults=True)
    text = journal_of("admission", world.log)
    assert replayed(folder, text, {"admission": world.fresh()}) == text


@given(seeds)
@few
def test_the_pool_is_replayed_to_the_byte(folder: Path, seed: int) -> None:
    world, dice = pools.World(), Random(seed)
    for _ in range(300):
        pools.random_event(world, dice)
    text = journal_of("pool", world.log)
    assert replayed(folder, text, {"pool": pools.World.fresh_pool()}) == text


@given(st.lists(st.floats(0.3, 3.0), min_size=2, max_size=7))
@settings(max_examples=4, deadline=None)
def test_a_planner_is_replayed_to_the_byte(folder: Path, drift: list[float]) -> None:
    """Measured times that are not what was foretold, so that it has learnt something at each step."""
    planner, plan = Answering(Searching(Search(plans.world(8)))), None
    log: list[tuple[Asked, list[Plan]]] = []
    for step, factor in enumerate(drift):
        measured = plans.batch(step, 64, 800 * factor)
        state = State(step, measured, plan, 50.0 * factor, 40.0, switches=[10.0] * (step // 3))
        asked = Asked.of(state)
        log.append((asked, planner.decide(asked)))
        plan = next(iter(log[-1][1]), plan)
    text = journal_of("planner", log)
    assert '"kind":"Plan"' in text
    assert replayed(folder, text, {"planner": Answering(Searching(Search(plans.world(8))))}) == text


def test_of_several_parts_each_gets_what_it_was_told(folder: Path) -> None:
    """A log has them mixed, and events that several parts are told of; only parts at hand are replayed."""
    world, other = tails.World(tails.POLICIES["plain"](), Random(1)), admission.World(Random(2), 1, 2)
    world.next_round()
    for _ in range(100):
        world.happen(faults=True)
        other.happen(faults=True)
    tail, rest = journal_of("tail", world.log), journal_of("admission", other.log)
    lines = [line for pair in zip(tail.splitlines(), rest.splitlines(), strict=False) for line in pair]
    mixed = "\n".join(lines) + "\n"
    own = [line for line in lines if json.loads(line)["part"] == "admission"]
    found = replayed(folder, mixed, {"admission": other.fresh()}).splitlines()
    assert found[: len(own)] == own[: len(found)] and len(own) > 50


def test_an_unknown_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"part":"pol","kind":"Tick","at":1.0}\n')
    with pytest.raises(UserError, match="log:1: part is 'pol'; did you mean 'pool'"):
        read_log(tmp_path / "log")


def small(**changes: Any) -> PosttrainScenario:
    written = {
        "model": "qwen2.5-0.5b",
        "gpu": "a800",
        "trajectories": {"preset": "search", "prompts": 8, "group": 4},
        "mode": "one-step-off",
        "rollout": [{"tp": 1, "replicas": 4}, {"tp": 2, "replicas": 1}],
        "training": {"dp": 2},
        "steps": 2,
    }
    return posttrain_from_dict({**written, **changes})


def parts_of(scenario: PosttrainScenario) -> dict[Part, Decider]:
    """All parts of a scenario's core, as before its first event."""
    setup = set_up_posttrain(scenario)
    core, asked = rollout_core(setup, Oracle()), scenario.trajectories
    parts: dict[Part, Decider] = {
        "rollout": core,
        "tail": Tail(policy_of(scenario.tail), core.rollouts),
        "admission": Admission(1 << 60, asked.prompts * asked.group, scenario.behind, size=asked.group),
    }
    if scenario.planner == "search":
        parts["planner"] = Answering(Searching(Search(Foresight(setup).world)))
    return parts


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"planner": "search", "steps": 4}, {"rollout", "planner"}),
        ({"router": "c-mlfq"}, {"rollout"}),
        ({"router": "heddle", "tail": "over-sampling"}, {"rollout", "tail", "admission"}),
        ({"tail": "repack", "mode": "split"}, {"rollout", "tail", "admission"}),
    ],
)
def test_a_simulated_run_is_replayed_to_the_byte(tmp_path: Path, changes: dict[str, Any], parts: set[str]) -> None:
    scenario, file = small(**changes), io.StringIO()
    noted = posttrain(scenario, journal=Journal(file)).summary
    assert noted == posttrain(scenario).summary, "keeping a journal changed something"
    text = file.getvalue()
    assert {json.loads(line).get("part", "rollout") for line in text.splitlines()} == parts
    assert text.count('{"kind":"Ended"') >= 2 * 8 * 4
    assert replayed(tmp_path, text, parts_of(scenario)) == text
