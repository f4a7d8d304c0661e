"""The trajectories of a log, simulated again: as they were run to the bit, and with other policies."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.balance.log import Journal, Row, command_line, is_event, read_event, read_header
from steelyard.errors import UserError
from steelyard.posttrain.history import DecidedLog, LoggedSample, RunHistory, run_history
from steelyard.posttrain.result import PosttrainResult
from steelyard.posttrain.run import posttrain
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.posttrain.whatif import LoggedTasks, changed_scenario, continued, what_if
from steelyard.records import Turn
from steelyard.scenario import PosttrainScenario, posttrain_from_dict
from support.engine_worlds import settled

SMALL: dict[str, Any] = {
    "model": "qwen2.5-0.5b",
    "gpu": "a800",
    "trajectories": {"preset": "search", "prompts": 4, "group": 4},
    "mode": "asynchronous",
    "rollout": [{"tp": 1, "replicas": 3}],
    "training": {"dp": 1, "micro_batch_tokens": 40960},
    "steps": 3,
    "seed": 3,
}
STEADY = {"preset": "search", "prompts": 4, "group": 4, "drift": None, "learning": None}
"""Trajectories that do not depend on when they begin."""


@cache
def ran(more: str = "{}") -> tuple[PosttrainScenario, PosttrainResult, str]:
    """A scenario with changes in JSON, its result, and its log."""
    scenario, file = posttrain_from_dict({**SMALL, **json.loads(more)}), io.StringIO()
    result = posttrain(scenario, journal=Journal(file, "test"))
    return scenario, result, file.getvalue()


def rows(text: str) -> Iterator[Row]:
    for number, line in enumerate(text.splitlines(), 1):
        yield f"log:{number}", json.loads(line)


def history(text: str) -> RunHistory:
    return run_history(DecidedLog(rows(text)))


# -- what a log tells ---------------------------------------------------------------------------------------------


def test_trajectories_are_recovered_as_they_were_drawn() -> None:
    scenario, result, text = ran(json.dumps({"trajectories": STEADY}))
    found, setup = history(text), set_up_posttrain(scenario)
    drawn = {each.id: each for step in range(3) for each in setup.tasks.step(step)}
    assert list(found.samples) == list(drawn) and len(drawn) == 48
    for name, sample in found.samples.items():
        made, original = sample.trajectory(), drawn[name]
        assert (made.turns, made.prompt, made.prompt_tokens) == (
            original.turns,
            original.prompt,
            original.prompt_tokens,
        )
    table = result.trajectories
    assert {name: sample.step for name, sample in found.samples.items()} == dict(
        zip(table["id"], table["step"].tolist(), strict=True)
    )
    assert [group for group, samples in found.groups.items() if len(samples) == 4] == [str(each) for each in range(12)]
    assert found.trained == [step.trained for step in result.records]
    assert found.tokens == sum(step.tokens for step in result.records)


def test_a_tool_without_a_latency_took_the_time_between_call_and_return() -> None:
    text = ran()[2]
    bare = "\n".join(
        json.dumps(_without_latency(json.loads(line)), separators=(",", ":")) for line in text.splitlines()
    )
    known, measured = history(text), history_of_events(bare)
    for name, sample in known.samples.items():
        for turn, other in zip(sample.turns[:-1], measured.samples[name].turns[:-1], strict=True):
            assert (other.latency or 0.0) == pytest.approx(turn.latency or 0.0, abs=1e-9)


def _without_latency(row: dict[str, Any]) -> dict[str, Any]:
    if "turn" in row:
        row["turn"]["latency"] = None
    return row


def history_of_events(text: str) -> RunHistory:
    """Of a log whose events were changed: what they lead to now is what it says."""
    first, *rest = [json.loads(line) for line in text.splitlines()]
    core, lines = read_header(first, "log").settings.core(), [json.dumps(first)]
    for row in filter(is_event, rest):
        lines += [json.dumps(row), *map(command_line, core.decide(read_event(row, "log")))]
    return history("\n".join(lines))


def test_events_that_do_not_count_are_left_out() -> None:
    """Every report comes twice."""
    _, _, text = ran()
    first, *rest = text.splitlines()
    events = [json.loads(line) for line in rest if line.startswith('{"id"')]
    twice = [{**row, "id": [0, 2 * place + again]} for place, row in enumerate(events) for again in (0, 1)]
    found = history_of_events("\n".join([first, *map(json.dumps, twice)]))
    assert found == history(text)


def test_a_log_that_is_decided_otherwise_is_refused() -> None:
    lines = ran()[2].splitlines()
    place = next(number for number, line in enumerate(lines) if '"kind":"Place"' in line)
    lines[place] = lines[place].replace('"replica":0', '"replica":1')
    with pytest.raises(UserError, match=rf"log:{place}: decided otherwise than in the log"):
        history("\n".join(lines))
    assert history("\n".join(lines[:place])).samples  # cut before the command: its driver was killed
    with pytest.raises(UserError, match=r"run\.jsonl: an empty log"):
        DecidedLog(iter(()), "run.jsonl")


# -- samples that did not end -------------------------------------------------------------------------------------

TURNS = st.builds(
    Turn,
    generated=st.integers(1, 400),
    tool=st.sampled_from(["search", None]),
    returned=st.integers(0, 300),
    latency=st.sampled_from([None, 0.0, 2.5]),
)


@given(
    st.lists(TURNS, max_size=4),
    st.integers(0, 300),
    st.none() | st.floats(0, 50),
    st.lists(TURNS, min_size=1, max_size=4),
    st.integers(1, 2000),
)
@settled(100)
def test_an_unfinished_sample_goes_on_from_where_it_was(
    had: list[Turn], fresh: int, in_tool: float | None, rest: list[Turn], longest: int
) -> None:
    fresh += in_tool is not None  # a turn that called a tool has a token
    sample = LoggedSample("a", "0", "p", 50, 0, had, fresh=fresh, called=None if in_tool is None else 1.0)
    added = continued(sample, in_tool, rest, longest)
    whole = LoggedSample("a", "0", "p", 50, 0, [*had, *added]).trajectory()
    part = 50 + sum(turn.generated + turn.returned for turn in had) + fresh
    assert whole.turns[: len(had)] == tuple(had)
    assert part < whole.tokens <= max(part + 1, longest)
    if in_tool is None:
        assert added[0].generated > fresh
    else:
        assert added[0].generated == fresh and len(added) > 1 and (added[0].latency or 0.0) >= in_tool
    assert all(turn.generated > 0 for turn in whole.turns)


def test_a_sample_that_was_given_up_is_as_one_of_its_group_that_was_longer() -> None:
    _, _, text = ran(json.dumps({"tail": "tail-batching", "mode": "split"}))
    found = history(text)
    parts = [sample for sample in found.samples.values() if not sample.ended]
    assert parts and not any(sample.lost for sample in parts)
    tasks, longest = (
        LoggedTasks(found, 4, 4),
        max(each.trajectory().tokens for each in found.samples.values() if each.ended),
    )
    for sample in parts:
        place = found.draws(sample.group).index(sample)
        (made,) = tasks.draw([int(sample.group)], samples=range(place, place + 1))
        assert made.id == sample.name and made.generated > sample.generated + sample.fresh
        known = [each.generated for each in found.groups[sample.group] if each.ended]
        if max(known, default=0) > sample.generated + sample.fresh:
            assert made.generated in known or made.tokens >= longest  # cut off, as by an engine
    assert tasks.repeated == 0


def test_what_the_log_does_not_have_repeats_it() -> None:
    found = history(ran()[2])
    tasks = LoggedTasks(found, 4, 4)
    first, *_, last = tasks.draw([0], samples=range(6))
    assert first.id == found.draws("0")[0].name
    assert (last.id, last.prompt, last.turns) == ("again/0/5", first.prompt, tasks.draw([0])[1].turns)
    (other,) = tasks.draw([1000], samples=range(1))
    assert other.id == "again/1000/0" and other.prompt == "again/1000" and tasks.repeated == 3


def test_a_sample_that_its_client_lost_comes_after_the_one_in_its_place() -> None:
    samples = [LoggedSample(name, "0", "p", 5, 0, [Turn(3)], ended=name != "a", lost=name == "a") for name in "abc"]
    found = RunHistory(history(ran()[2]).settings, groups={"0": samples})
    assert [each.name for each in found.draws("0")] == ["b", "c", "a"]


# -- simulating them ----------------------------------------------------------------------------------------------

AS_WAS: list[dict[str, Any]] = [
    {},
    {"mode": "split"},
    {"mode": "one-step-off", "streaming": True},
    {"tail": "over-sampling"},
    {"tail": "over-sampling", "mode": "split"},
    {"tail": "tail-batching"},
    {"tail": {"kind": "partial", "budget": 150}},
    {"tail": {"kind": "divided", "chunk": 100}},
    {"tail": "repack"},
    {"estimator": "oracle", "tail": "over-sampling"},
    {"router": "power-of-two"},
    {"planner": "search", "steps": 5},
    {"planner": "static-best"},
    {"pool": "thresholds", "steps": 6},
]


@pytest.mark.parametrize("more", AS_WAS, ids=json.dumps)
def test_as_it_was_it_takes_what_it_took_to_the_bit(more: dict[str, Any]) -> None:
    scenario, result, text = ran(json.dumps(more))
    found = what_if(DecidedLog(rows(text)), scenario, ["router=sticky"])
    assert found.as_was == found.recorded
    assert found.recorded.seconds == result.records[-1].trained
    assert found.recorded.tokens == sum(step.tokens for step in result.records)
    assert found.error == 0 and found.repeated == 0


@given(
    st.sampled_from(["split", "one-step-off", "asynchronous"]),
    st.sampled_from(["none", "over-sampling", "repack", {"kind": "partial", "budget": 90}]),
    st.sampled_from(["cost-aware", "c-mlfq", "heddle", "length-predicted"]),
    st.sampled_from([4, 256]),
    st.integers(0, 99),
)
@settled(6)
def test_so_it_does_whatever_the_policies(mode: str, tail: Any, router: str, seats: int, seed: int) -> None:
    more = {"mode": mode, "tail": tail, "router": router, "engine": {"max_num_seqs": seats}, "seed": seed}
    scenario, _, text = ran(json.dumps(more))
    found = what_if(DecidedLog(rows(text)), scenario, ["estimator=blind"])
    assert found.as_was == found.recorded


@pytest.mark.parametrize("change", ["router=sticky", "mode=split", "rollout=[{tp: 1, replicas: 1}]", "planner=search"])
def test_changed_it_is_what_another_run_of_the_same_trajectories_is(change: str) -> None:
    """Where trajectories do not depend on when they begin, the other run can be simulated without the log."""
    scenario, _, text = ran(json.dumps({"trajectories": STEADY}))
    other = posttrain(changed_scenario(scenario, [change]))
    found = what_if(DecidedLog(rows(text)), scenario, [change])
    assert found.changed.seconds == other.records[-1].trained
    assert found.changed.tokens == sum(step.tokens for step in other.records)
    assert found.gain == found.changed.tokens_per_second / found.as_was.tokens_per_second - 1


def test_a_log_that_was_cut_is_compared_up_to_its_last_whole_step() -> None:
    scenario, result, text = ran(json.dumps({"mode": "split"}))
    lines = text.splitlines()
    cut = next(number for number, line in enumerate(lines) if '"StepTrained"' in line and '"step":1' in line)
    found = what_if(DecidedLog(rows("\n".join(lines[: cut + 3]))), scenario, ["router=sticky"])
    assert found.recorded.steps == found.changed.steps == 2
    assert found.recorded.seconds == found.as_was.seconds == result.records[1].trained
    with pytest.raises(UserError, match="log: no training step ends in it"):
        what_if(DecidedLog(rows("\n".join(lines[:50]))), scenario, ["router=sticky"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["routr=sticky"], "<dict> with --what-if routr=sticky: routr: unknown key; did you mean 'router'?"),
        (["router=stiky"], "<dict> with --what-if router=stiky: router: .*sticky"),
        (["router"], "--what-if router: must read KEY.PATH=VALUE"),
        (["steps=9"], "--what-if steps=9: steps are those of the log"),
        (["trajectories.group=9"], "--what-if trajectories.group=9: trajectories are those of the log"),
        (["rollout[7].tp=2"], r"--what-if rollout\[7\].tp=2: rollout has 1 entries"),
    ],
)
def test_a_change_that_cannot_be_is_told(changes: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        changed_scenario(posttrain_from_dict(SMALL), changes)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"router": "sticky"}, "router: sticky in the scenario, and cost-aware in the log; give the scenario"),
        ({"planner": "search"}, "planner: search in the scenario, and none in the log"),
        ({"steps": 4}, "steps: 4 in the scenario, and 3 in the log"),
        ({"trajectories": "search"}, "trajectories.prompts: 256 in the scenario, and 4 in the log"),
        ({"tail": "repack"}, "tail: Repacking.* in the scenario, and none in the log"),
        ({"mode": "split"}, "staleness: 0 in the scenario, and 2 in the log"),
    ],
)
def test_a_scenario_of_another_run_is_refused(other: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        what_if(DecidedLog(rows(ran()[2])), posttrain_from_dict({**SMALL, **other}), ["estimator=blind"])


@pytest.mark.parametrize(
    ("old", "new"),
    [('"latency":0.', '"latency":-0.'), ('"returned":', '"returned":-'), ('"prompt_tokens":', '"prompt_tokens":-')],
)
def test_numbers_that_cannot_be_are_refused(old: str, new: str) -> None:
    with pytest.raises(UserError, match="has lengths or latencies that cannot be"):
        history_of_events(ran()[2].replace(old, new))
