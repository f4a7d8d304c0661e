"""Prefixes, conversations and closed loops: what is shared, and who waits for whom."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard.scenario import scenario_from_dict
from steelyard.workload import Workload, build_workload

BASE = {
    "arrivals": {"kind": "poisson", "rate": 5},
    "prompt": {"kind": "uniform", "min": 5, "max": 60},
    "output": {"kind": "uniform", "min": 2, "max": 9},
}


def build(**spec: Any) -> Workload:
    scenario = scenario_from_dict({"model": "m", "fleet": {"gpu": "g"}, "workload": {**BASE, **spec}, "seed": 4})
    work = build_workload(scenario.workload, 4, Path())
    work.validate()
    return work


def written_out(work: Workload, row: int) -> tuple[list[tuple[int, int]], int]:
    """A request's tokens, prompt then output, as (stream, position); and how many of them are its prompt."""
    content = work.content[row] if work.content is not None else ()
    tokens = [(stream, i) for stream, length in content for i in range(length)]
    stream = int(work.stream[row])
    start = content[-1][1] if content and content[-1][0] == stream else 0
    own = stream if stream >= 0 else -1000 - row
    rest = int(work.prompt[row] + work.output[row]) - len(tokens)
    return tokens + [(own, start + i) for i in range(rest)], int(work.prompt[row])


def test_prefixes_are_part_of_the_prompt() -> None:
    work = build(requests=500, prefix={"tokens": 40, "groups": 3})
    assert work.prompt.min() == 41  # shorter prompts are raised to the prefix plus one
    assert work.prompt.max() == 60
    assert work.content is not None
    assert set(work.content) == {((0, 40),), ((1, 40),), ((2, 40),)}
    assert (work.stream == -1).all()
    assert work.streams == 3


def test_popular_prefixes_are_popular() -> None:
    work = build(requests=30_000, prefix={"tokens": 4, "groups": 3, "zipf": 1.0})
    assert work.content is not None
    uses = np.bincount([content[0][0] for content in work.content]) / len(work)
    assert uses == pytest.approx(np.array([6, 3, 2]) / 11, abs=0.02)


def test_every_turn_continues_the_conversation() -> None:
    work = build(
        requests=301,
        session={
            "turns": {"kind": "uniform", "min": 1, "max": 6},
            "think": 2,
            "system": {"tokens": 30, "groups": 2},
        },
    )
    assert len(work) == 301
    assert 50 < (work.after < 0).sum() < 160
    for row in range(len(work)):
        parent = int(work.after[row])
        tokens, prompt = written_out(work, row)
        assert tokens[0][0] in (0, 1) and tokens[29] == (tokens[0][0], 29)  # the system prompt
        if parent < 0:
            assert 35 <= prompt <= 90
            continue
        before, _ = written_out(work, parent)
        assert parent == row - 1
        assert tokens[: len(before)] == before
        assert 5 <= prompt - len(before) <= 60
        assert work.think[row] == 2
    conversations = {int(stream) for stream in work.stream if stream >= 0}
    assert not conversations & {0, 1}


def test_sessions_share_only_the_system_prompt() -> None:
    work = build(requests=20, session={"turns": 2, "system": 30})
    first, second = written_out(work, 0)[0], written_out(work, 2)[0]
    assert (work.after[0], work.after[2]) == (-1, -1)
    assert [a == b for a, b in zip(first, second, strict=False)].index(False) == 30


def test_the_last_session_is_cut_to_the_number_of_requests() -> None:
    work = build(requests=10, session={"turns": 4})
    assert np.flatnonzero(work.after < 0).tolist() == [0, 4, 8]


def test_sessions_within_a_duration() -> None:
    work = build(duration=60, session={"turns": 3})
    roots = work.at[work.after < 0]
    assert len(work) == 3 * len(roots)
    assert roots[-1] <= 60
    assert abs(len(roots) - 300) < 90


def test_sessions_of_one_turn_share_nothing() -> None:
    work = build(requests=10, session={"turns": 1})
    assert work.content is None
    assert (work.stream == -1).all()


def test_users_ask_one_request_at_a_time() -> None:
    work = build(requests=10, arrivals={"kind": "closed", "users": 4, "think": 1.5, "ramp": 8})
    assert work.after.tolist() == [-1, -1, -1, -1, 0, 1, 2, 3, 4, 5]
    assert work.at[:4].tolist() == [0, 2, 4, 6]
    assert work.think.tolist() == [0] * 4 + [1.5] * 6


def test_more_users_than_requests() -> None:
    work = build(requests=3, arrivals={"kind": "closed", "users": 50})
    assert work.at.tolist() == [0, 0, 0]


def test_users_hold_one_session_after_another() -> None:
    work = build(requests=12, arrivals={"kind": "closed", "users": 2, "think": 9}, session={"turns": 3, "think": 1})
    assert work.after.tolist() == [-1, 0, 1, -1, 3, 4, 2, 6, 7, 5, 9, 10]
    assert work.think.tolist() == [0, 1, 1, 0, 1, 1, 9, 1, 1, 9, 1, 1]
    assert work.content is not None and work.content[6] == ()  # a new conversation, though the same user
