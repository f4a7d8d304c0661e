"""Sentences about decisions: one for each, and what they say is so."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.commands import Abort, Place, Start, TrainOn
from steelyard.balance.core import Core
from steelyard.balance.inbox import Envelope
from steelyard.balance.kinds import Command, Event
from steelyard.balance.log import (
    SCHEMA,
    Header,
    Journal,
    Row,
    command_line,
    event_line,
    header_line,
    is_event,
    read_event,
    read_header,
)
from steelyard.balance.pool import Drained, Failed, PoolFormed, PoolRules, StepBegan, StepEnded, Tick
from steelyard.balance.settings import CoreSettings
from steelyard.balance.tail import Divided, OverSampling, PartialRollout, Reconfiguring, Repacking, TailBatching
from steelyard.errors import UserError
from steelyard.live.explain import Explained, explanations, log_of
from steelyard.live.store import Store, stored_fact
from steelyard.live.timeline import timeline, write_timeline
from steelyard.posttrain.history import DecidedLog
from steelyard.posttrain.result import PosttrainResult
from steelyard.posttrain.run import posttrain
from steelyard.scenario import posttrain_from_dict
from support.cluster import WIDE, Cluster, settings
from support.engine_worlds import settled

SMALL: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 4},
    "mode": "asynchronous",
    "rollout": [{"tp": 1, "replicas": 3}],
    "training": {"dp": 1},
    "steps": 3,
    "seed": 3,
}
LARGE = {
    "model": "qwen3-14b",
    "rollout": [{"tp": 2, "replicas": 6}],
    "training": {"tp": 4, "dp": 1},
    "engine": {"block_size": 64},
    "steps": 8,
}
TAILS = [
    *(None, OverSampling(), TailBatching(), PartialRollout(300), Divided(200), Repacking()),
    Reconfiguring(few=0.7, wide=WIDE),
]


@cache
def ran(more: str = "{}") -> tuple[PosttrainResult, str]:
    """The result of a scenario with changes in JSON, and its log."""
    file = io.StringIO()
    return posttrain(posttrain_from_dict({**SMALL, **json.loads(more)}), journal=Journal(file, "test")), file.getvalue()


def rows(text: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        yield f"log:{number}", json.loads(line)


def explained(text: str) -> list[Explained]:
    return list(explanations(rows(text)))


def by_dice(seed: int, made: CoreSettings, steps: int = 400) -> list[tuple[Envelope, list[Command]]]:
    """What happens in a cluster where anything may happen."""
    cluster = Cluster(made.core(), Random(seed), made=made)
    cluster.begin()
    for _ in range(steps):
        if not cluster.happen():
            break
    return cluster.log


def written(made: CoreSettings, decided: Sequence[tuple[Envelope, Sequence[Command]]]) -> str:
    lines = [header_line(Header(SCHEMA, "test", made))]
    for envelope, commands in decided:
        lines += [event_line(envelope), *map(command_line, commands)]
    return "\n".join(lines)


def told(core: Core, *events: Event) -> list[tuple[Envelope, list[Command]]]:
    envelopes = [Envelope(0, number, event) for number, event in enumerate(events)]
    return [(each, core.decide(each)) for each in envelopes]


# -- one for each decision ----------------------------------------------------------------------------------------


def test_the_first_sentences_of_a_run() -> None:
    said = [f"{each.at:,.1f} s: {each.sentence}" for each in explained(ran()[1])]
    begun = "trajectory step-0/search-50013/0"
    assert said[:9] == [
        "0.0 s: replica 0 is up: TP1, 256 seats, 6,167,728 tokens of cache",
        "0.0 s: replica 1 is up: TP1, 256 seats, 6,167,728 tokens of cache",
        "0.0 s: replica 2 is up: TP1, 256 seats, 6,167,728 tokens of cache",
        "0.0 s: engines have weights 0",
        "0.0 s: samples of step 0 begin (4 groups of 4), since engines have weights 0 and staleness may be 2",
        "0.0 s: samples of step 1 begin (4 groups of 4), since engines have weights 0 and staleness may be 2",
        "0.0 s: samples of step 2 begin (4 groups of 4), since engines have weights 0 and staleness may be 2",
        f"0.0 s: {begun} begins in group 0, with weights 0; 212 tokens of prompt",
        f"0.0 s: {begun} goes to replica 0 (TP1): it has no cache yet, 1 of 256 seats are taken, "
        "predicted finish times rise least there",
    ]


def test_the_story_of_a_trajectory() -> None:
    name = "step-0/search-45417/3"
    said = [f"{each.at:,.1f} s: {each.sentence}" for each in explained(ran()[1]) if each.concerns(name)]
    begun, goes = f"trajectory {name}", f"trajectory {name} goes to replica 1 (TP1)"
    assert said == [
        f"0.0 s: {begun} begins in group 2, with weights 0; 180 tokens of prompt",
        f"0.0 s: {goes}: it has no cache yet, 4 of 256 seats are taken, predicted finish times rise least there",
        f"0.3 s: {begun} calls a tool after 70 tokens; its cache goes to the host's memory",
        f"0.4 s: {goes}: its cache is in the host's memory there, 13 of 256 seats are taken",
        f"0.6 s: {begun} has ended after 2 turns and 122 tokens",
        "3.6 s: step 0 trains on 4 groups (16 samples: 16 of weights 0)",
    ]


@pytest.mark.parametrize("tail", TAILS, ids=lambda tail: type(tail).__name__)
@given(st.integers(0, 10_000), st.sampled_from(["cost-aware", "length-predicted", "c-mlfq"]))
@settled(8)
def test_every_decision_has_its_sentence(tail: Any, seed: int, router: str) -> None:
    made = settings(tail, router)
    log = by_dice(seed, made)
    found = explained(written(made, log))
    commands = [command for _, some in log for command in some]
    placed = [each for each in commands if isinstance(each, Place)]
    said = [each for each in found if each.kind == "place"]
    assert [each.subject for each in said] == [each.trajectory for each in placed]
    assert all(f"goes to replica {place.replica} " in each.sentence for each, place in zip(said, placed, strict=True))
    kinds = Counter(each.kind for each in found)
    assert kinds["start"] == sum(isinstance(each, Start) for each in commands)
    assert Counter(each.subject for each in found if each.kind == "abort") >= Counter(
        name for each in commands if isinstance(each, Abort) for name in each.trajectories
    )
    trained = [each for each in found if each.about and each.kind == "train"]
    assert [each.about for each in trained] == [
        frozenset(each.trajectories) for each in commands if isinstance(each, TrainOn)
    ]
    core = made.core()
    for envelope, _ in log:
        core.decide(envelope)
    dropped = Counter(re.findall(r"is dropped: ([a-z ]+?)(?: \(|$)", "\n".join(each.sentence for each in found), re.M))
    assert dropped == core.dropped
    assert [each.at for each in found] == sorted(each.at for each in found)


@pytest.mark.parametrize("tail", TAILS, ids=lambda tail: type(tail).__name__)
@given(st.integers(0, 10_000))
@settled(8)
def test_seats_are_those_of_the_turns_on_a_replica(tail: Any, seed: int) -> None:
    """Counted by the timeline, turn by turn."""
    made = settings(tail)
    text = written(made, by_dice(seed, made))
    said = [_seats(each.sentence) for each in explained(text) if each.kind == "place"]
    busy: Counter[int] = Counter()
    counted = []
    for each in timeline(DecidedLog(rows(text))):
        if each.get("id") == each["name"] and each["ph"] in "be":
            busy[each["pid"] - 10] += 1 if each["ph"] == "b" else -1
            if each["ph"] == "b":
                counted.append((each["pid"] - 10, busy[each["pid"] - 10]))
    assert said == counted and said


def _seats(sentence: str) -> tuple[int, int]:
    """The replica that a turn goes to, and the turns there."""
    placed = re.search(
        r"goes to replica (\d+) .*(?:, (\d+) of 4 seats|all 4 seats are taken and (\d+) queue)", sentence
    )
    assert placed is not None
    return int(placed[1]), 4 + int(placed[3]) if placed[2] is None else int(placed[2])


# -- reasons ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tail", "wanted"),
    [("tail-batching", {"complete", "begun again"}), ("over-sampling", {"too old"})],
)
def test_why_samples_are_given_up(tail: str, wanted: set[str]) -> None:
    """Each reason is checked by what the log says before and after."""
    text = ran(json.dumps({"tail": tail, "mode": "split", "steps": 8}))[1]
    staleness = {"tail-batching": 0, "over-sampling": 1}[tail]
    log = [json.loads(line) for line in text.splitlines()[1:]]
    group = {row["trajectory"]: (row["group"], row["version"]) for row in log if row["kind"] == "Begun"}
    given_up = [place for place, row in enumerate(log) if row["kind"] == "Abort" for _ in row["trajectories"]]
    found = [each for each in explained(text) if each.kind == "abort"]
    reasons = set()
    for each, place in zip(found, given_up, strict=True):
        own, version = group[each.subject]
        ended = {row["trajectory"] for row in log[:place] if row["kind"] == "Ended"}
        ended -= {name for row in log[:place] if row["kind"] == "Abort" for name in row["trajectories"]}
        of_group = [name for name in ended if group[name][0] == own]
        if f"group {own} has its 4 samples" in each.sentence:
            assert len(of_group) == 4 and each.subject not in ended
            reasons.add("complete")
        elif f"group {own} begins again in a later round" in each.sentence:
            assert len(of_group) < 4
            if any(row["kind"] == "Start" and row["groups"] == [own] for row in log[place:]):
                reasons.add("begun again")
        else:
            (numbers,) = re.findall(r"began with weights (\d+), (\d+) versions behind in step (\d+);", each.sentence)
            began, behind, step = map(int, numbers)
            assert behind == step - began > staleness and version >= began
            assert (own, began) in group.values()
            reasons.add("too old")
    assert reasons == wanted


def test_trajectories_wait_where_there_are_few_seats() -> None:
    text = ran(json.dumps({"engine": {"max_num_seqs": 4}, "router": "length-predicted"}))[1]
    said = [each.sentence for each in explained(text) if each.kind == "wait"]
    assert said[0].endswith("waits for a turn: 0 of 12 seats are free, 1 trajectory in line")
    assert said[1].endswith("waits for a turn: 0 of 12 seats are free, 2 trajectories in line")


def test_what_a_plan_should_gain_and_gained() -> None:
    result, text = ran(json.dumps({**LARGE, "planner": "search", "mode": "split"}))
    (change,) = result.summary["reallocations"]
    said = [each.sentence for each in explained(text) if each.kind == "plan"]
    changes = [each for each in said if "the plan changes" in each]
    assert (
        len(changes) == 1
        and f"after step {change['step']}, from {change['what'].replace(' -> ', ' to ')}" in changes[0]
    )
    assert f", {change['predicted']:,.1f} s less" in changes[0]
    assert f"the plan after step 0 is in force; the change took {change['seconds']:,.1f} s" in said
    gain = f"has gained {change['realised']:,.1f} s a step over 3 steps; {change['predicted']:,.1f} s were predicted"
    assert f"the plan after step 0 {gain}" in said
    assert any(each.startswith("the plan stays: 8 train") for each in said)


def test_what_the_pool_lends_and_gains() -> None:
    trajectories = {"preset": "search", "prompts": 16, "group": 8}
    result, text = ran(json.dumps({**LARGE, "pool": "payoff", "trajectories": trajectories}))
    said = [each.sentence for each in explained(text) if each.kind == "pool"]
    first, *_ = moves = result.summary["reallocations"]
    for each in moves:
        number = each["what"].split()[1]
        less = f"should take {each['predicted']:,.1f} s less"
        assert any(line.startswith(f"pool replica {number} is lent to training") and less in line for line in said)
        assert any(line.startswith(f"pool replica {number} trains from step ") for line in said)
        gained = f"has gained {each['realised']:,.1f} s a step over "
        assert any(line.startswith(f"pool replica {number} in training {gained}") for line in said)
    assert first["outcome"] == "done"


@cache
def pool_settings() -> CoreSettings:
    made = settings()
    return CoreSettings(**{each: getattr(made, each) for each in made.__slots__} | {"pool": PoolRules("payoff", True)})


def lending() -> list[Event]:
    """Up to a replica that is asked to drain."""
    gpus = {number: tuple(range(4 * number, 4 * number + 4)) for number in range(4)}
    core, hybrid = tuple(gpus.items())[:1], tuple(gpus.items())[1:]
    ended = StepEnded(100.0, 0, train=90.0, rollout=10.0, seconds=95.0, pressure=0.1)
    return [PoolFormed(0.0, core, hybrid, 4), StepBegan(1.0, 0, 0), ended]


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ([Tick(1900.0)], "pool replica 1 is rolled back: it was draining and did not answer in 1800 s"),
        (
            [Drained(110.0, 1, 1), Tick(170.0)],
            "pool replica 1 is rolled back: it was requested and did not answer in 60 s",
        ),
        ([Failed(110.0, 1, 1, "no route to host")], "pool replica 1 is rolled back: no route to host"),
    ],
)
def test_why_a_replica_is_rolled_back(after: list[Event], said: str) -> None:
    made = pool_settings()
    text = written(made, told(made.core(), *lending(), *after))
    assert said in [each.sentence for each in explained(text)]


def test_reports_that_are_dropped_are_told_with_the_reason() -> None:
    made = settings()
    log = by_dice(5, made)
    events = [envelope.event for envelope, _ in log for _ in range(2)]  # each comes twice
    found = explained(written(made, told(made.core(), *events)))
    said = Counter(each.sentence.split("dropped: ")[1] for each in found if each.kind == "drop")
    assert sum(said.values()) >= len(log) and said["repeated (it says nothing new)"] > 0
    place = next(number for number, (each, _) in enumerate(log) if type(each.event).__name__ == "Called")
    again = [*log[: place + 1], (log[place][0], [])]  # the envelope itself comes twice
    last = explained(written(made, again))[-1]
    assert re.fullmatch(r"Called of .+ is dropped: repeated \(it says nothing new\)", last.sentence)


def test_a_log_that_is_decided_otherwise_is_refused() -> None:
    lines = ran()[1].splitlines()
    place = next(number for number, line in enumerate(lines) if '"kind":"Place"' in line)
    lines[place] = lines[place].replace('"replica":0', '"replica":1')
    with pytest.raises(UserError, match=rf"log:{place}: decided otherwise"):
        explained("\n".join(lines))
    with pytest.raises(UserError, match="at is 1e\\+300 s, which no run reaches"):
        explained("\n".join([lines[0], lines[1].replace('"at":0.0', '"at":1e300')]))


def test_a_core_that_is_watched_decides_as_one_that_is_not() -> None:
    """Else the log would be refused: the tail policy is replaced by a watched one."""
    made = settings(TailBatching())
    log = by_dice(11, made)
    assert any(isinstance(command, Abort) for _, some in log for command in some)
    assert explained(written(made, log))


# -- the timeline -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more", [{}, {"tail": "over-sampling", "mode": "split"}, {"mode": "one-step-off", "streaming": True}]
)
def test_training_steps_and_syncs_are_slices(more: dict[str, Any]) -> None:
    result, text = ran(json.dumps(more))
    slices = [each for each in timeline(DecidedLog(rows(text))) if each["ph"] == "X"]
    for step in result.records:
        own = [each for each in slices if re.match(rf"step {step.step}\b", each["name"])]
        assert len(own) == len(step.spans)
        for each, (begun, over) in zip(own, step.spans, strict=True):
            assert each["ts"] <= begun * 1e6 + 0.01 and each["ts"] + each["dur"] == pytest.approx(over * 1e6, abs=0.01)
        assert sum(each["args"]["samples"] for each in own) == step.samples
    syncs = [each for each in slices if each["name"].startswith("weights")]
    assert [each["name"] for each in syncs] == ["weights 1", "weights 2"]
    for step, each in zip(result.records, syncs, strict=False):
        assert each["ts"] == pytest.approx(step.trained * 1e6) and each["dur"] == pytest.approx(step.sync * 1e6, abs=1)


@given(st.integers(0, 10_000), st.sampled_from(TAILS))
@settled(12)
def test_turns_are_slices_that_nest_and_counters_add_up(seed: int, tail: Any) -> None:
    made = settings(tail)
    log = by_dice(seed, made)
    under_way: dict[str, list[str]] = {}
    turns = 0
    for each in timeline(DecidedLog(rows(written(made, log)))):
        if each["ph"] == "b":
            under_way.setdefault(each["id"], []).append(each["name"])
            turns += each["name"] == each["id"]
            assert len(under_way[each["id"]]) <= 2
        elif each["ph"] == "e":
            assert under_way[each["id"]].pop() == each["name"]
        elif each["ph"] == "C":
            assert all(value >= 0 for value in each["args"].values())
    assert not any(under_way.values())
    assert turns == sum(isinstance(command, Place) for _, some in log for command in some)


def test_counters_are_those_of_the_core() -> None:
    text = ran(json.dumps({"engine": {"max_num_seqs": 4}, "router": "length-predicted"}))[1]
    counts = [each["args"] for each in timeline(DecidedLog(rows(text))) if each["ph"] == "C"]
    assert counts[0] == {"waiting": 36, "running": 12, "in tools": 0}
    assert max(each["running"] for each in counts) == 12
    assert counts[-1] == {"waiting": 0, "running": 0, "in tools": 0}


def test_a_timeline_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_timeline(DecidedLog(rows(ran()[1])), path)
    shown = json.loads(path.read_text())["traceEvents"]
    names = [each["args"]["name"] for each in shown if each["name"] == "process_name"]
    assert names == ["run", "replica 0 (TP1)", "replica 1 (TP1)", "replica 2 (TP1)"]
    before = path.read_bytes()
    lines = ran()[1].splitlines()
    broken = "\n".join([*lines[:100], *lines[101:]])
    with pytest.raises(UserError):
        write_timeline(DecidedLog(rows(broken)), path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


# -- files --------------------------------------------------------------------------------------------------------


def test_a_store_is_a_log_too_and_is_not_taken_over(tmp_path: Path) -> None:
    text = ran()[1]
    header, *rest = [row for _, row in rows(text)]
    store = Store(tmp_path / "run.sqlite", read_header(header, "log").settings)
    core = read_header(header, "log").settings.core()
    envelopes = [read_event(row, "log") for row in rest if is_event(row)]
    store.append(envelopes)
    store.append([], [core.decide(each) for each in envelopes])
    store.keep("scenario", "{}")
    assert list(explanations(log_of(tmp_path / "run.sqlite"))) == explained(text)
    assert stored_fact(tmp_path / "run.sqlite", "scenario") == "{}"
    assert stored_fact(tmp_path / "run.sqlite", "none") is None
    store.keep("other", "1")  # this would raise if another had taken over
    store.close()


def test_the_pool_commands_all_have_words() -> None:
    """A replica that arrives goes through all of them."""
    _, text = ran(
        json.dumps({**LARGE, "pool": "payoff", "trajectories": {"preset": "search", "prompts": 16, "group": 8}})
    )
    said = "\n".join(each.sentence for each in explained(text) if each.subject == "pool replica 1")
    for words in ("is lent", "is empty", "has fetched", "trains from step"):
        assert words in said
