"""The trace: valid Chrome events, nothing left out in silence."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steelyard.report.page import render_page
from steelyard.report.trace import trace_note, write_trace
from support.report_samples import make_result, no_steps


def read(result: Any, path: Path, cap: int = 200_000) -> Any:
    write_trace(result, path, cap)
    assert path.read_bytes()[4:8] == bytes(4), "no time of writing in the file"
    return json.loads(gzip.decompress(path.read_bytes()))


def test_steps_and_requests_are_all_there(tmp_path: Path) -> None:
    result = make_result(50, 3, name='a "name"')
    trace = read(result, tmp_path / "t.json.gz")
    events = trace["traceEvents"]
    kinds = Counter(event["ph"] for event in events)
    steps = [event for event in events if event["ph"] == "X"]
    assert len(steps) == len(result.steps["end"])
    assert sum(event["dur"] for event in steps) == pytest.approx(
        1e6 * float((result.steps["end"] - result.steps["start"]).sum()), rel=1e-6
    )
    assert {event["name"] for event in steps} <= {"decode", "prefill", "prefill+decode"}
    assert sum(event["args"]["tokens"] for event in steps) == int(
        (result.steps["n_decode"] + result.steps["prefill_tokens"]).sum()
    )
    assert kinds["b"] == kinds["e"]
    assert sum(event["name"] == "request" and event["ph"] == "b" for event in events) == 50
    assert trace["otherData"]["name"] == 'a "name"'
    assert trace["otherData"]["note"] is None
    named = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert {"replica 0", "replica 1", "replica 2"} <= named


def test_phases_follow_one_another(tmp_path: Path) -> None:
    result = make_result(20, 1, reject=0)
    events = read(result, tmp_path / "t.json.gz")["traceEvents"]
    mine = [(e["name"], e["ph"], e["ts"]) for e in events if e["ph"] in "be" and e["id"] == "7"]
    moments = {
        name: round(float(result.requests[name][7]) * 1e6, 3)
        for name in ("arrival", "scheduled", "first_token", "finish")
    }
    assert ("queue", "b", moments["arrival"]) in mine
    assert ("prefill", "b", moments["scheduled"]) in mine
    assert ("decode", "b", moments["first_token"]) in mine
    assert ("decode", "e", moments["finish"]) in mine
    assert mine[-1] == ("request", "e", moments["finish"])


def test_counters_only_when_they_move(tmp_path: Path) -> None:
    result = make_result(50, 1)
    counters = [e for e in read(result, tmp_path / "t.json.gz")["traceEvents"] if e["ph"] == "C"]
    free = [e["args"]["free"] for e in counters if e["name"] == "free blocks"]
    assert all(a != b for a, b in pairwise(free))
    changes = np.flatnonzero(np.diff(result.steps["free_blocks"])).size
    assert len(free) == changes + 1


@pytest.mark.parametrize("cap", [400, 3000])
def test_a_cut_is_announced(tmp_path: Path, cap: int) -> None:
    result = make_result(300, 2)
    trace = read(result, tmp_path / "t.json.gz", cap)
    events = [e for e in trace["traceEvents"] if e["ph"] in "XCbe"]
    assert cap / 3 < len(events) <= cap
    note = trace_note(result, cap)
    assert note
    assert trace["otherData"]["note"] == note
    assert any(e["name"] == note for e in trace["traceEvents"])
    steps = [e for e in events if e["ph"] == "X"]
    shown = f"the first {len(steps):,} of {len(result.steps['end']):,} steps"
    assert shown in note
    latest = max(e["ts"] for e in steps)
    earlier = (result.steps["start"] * 1e6 < latest - 1).sum()
    assert len(steps) >= earlier, "what is kept is the beginning, of all replicas"


def test_whole_runs_have_no_note() -> None:
    assert trace_note(make_result(50)) is None


def test_nothing_served_and_followers_never_submitted(tmp_path: Path) -> None:
    result = no_steps(make_result(10))
    result.requests["arrival"][5:] = np.nan
    events = read(result, tmp_path / "t.json.gz", 50)["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["no replica"]
    assert sum(e["ph"] == "b" for e in events) == 3
    assert trace_note(result, 50)


def test_the_page_repeats_the_note() -> None:
    note = trace_note(make_result(300, 2), 400)
    assert note
    assert note in render_page(make_result(300, 2), [note])
