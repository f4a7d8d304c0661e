"""Experts that tokens cannot have chosen evenly: from the times of decode steps, and from what a capture says."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from steelyard.hardware import find_gpu
from steelyard.model import load_model
from steelyard.validate.capture import read_capture_folder
from steelyard.validate.compare import validate
from steelyard.validate.expert_routing import readings, recorded_routing, routing_notes
from steelyard.validate.steps import RecordedStep
from support.captures import LONE, capture, chat
from support.paths import DATA

H200 = find_gpu("h200")
MODEL = load_model("qwen3-30b-a3b")


def decoding(seconds: float, decodes: int = 100, count: int = 20) -> list[RecordedStep]:
    """Steps of as many decodes, each scheduled while the one before runs."""
    return [
        RecordedStep((k - 0.5) * seconds, (k + 1) * seconds, decodes, 1000 * decodes, 1000, ()) for k in range(count)
    ]


def test_the_least_time_is_that_of_reading_the_experts_once() -> None:
    """100 tokens choose all of 128 experts but one in 600: 48 layers of them are 58 GB."""
    (found,) = readings(MODEL, decoding(0.02), H200, 1)
    weights = 48 * 128 * 3 * 2048 * 768 * 2
    assert found.least == pytest.approx(weights / 4.8e12, rel=0.01)
    assert (found.decodes, found.steps, found.possible) == (100, 19, True)
    (split,) = readings(MODEL, decoding(0.02), H200, 2)
    assert split.least == pytest.approx(found.least / 2)
    (few,) = readings(MODEL, decoding(0.02, decodes=1), H200, 1)
    assert few.least == pytest.approx(found.least * 8 / 128, rel=0.01)


def test_only_decodes_behind_decodes_count() -> None:
    """The result of a step that waited for a prompt's launch, or that nothing came before, says nothing of the GPU."""
    lone = [RecordedStep(k, k + 0.001, 100, 1, 1, ()) for k in range(20)]
    assert not list(readings(MODEL, lone, H200, 1))
    mixed = [
        RecordedStep(s.scheduled, s.updated, 100, 1, 1, ((5, 0),) if k % 2 else ())
        for k, s in enumerate(decoding(0.001))
    ]
    assert not list(readings(MODEL, mixed, H200, 1))
    assert not list(readings(MODEL, decoding(0.001, count=8), H200, 1)), "too few"
    assert not list(readings(load_model("llama-3.1-8b"), decoding(0.001), H200, 1)), "no experts"


@pytest.mark.parametrize(
    ("routing", "seconds", "said"),
    [
        (None, 0.02, "how experts were routed is not known"),
        ("unknown", 0.02, "how experts were routed is not known"),
        ("uniform_random", 0.02, None),
        ("trained", 0.02, None),
        (None, 0.0056, "experts were not routed evenly (recorded: unknown): steps of 100 decodes took 5.6 ms"),
        ("trained", 0.0056, "experts were not routed evenly (recorded: trained)"),
    ],
)
def test_a_reader_is_warned(tmp_path: Path, routing: Any, seconds: float, said: str | None) -> None:
    folder = capture(tmp_path / "own", {"lone": LONE[:8]})
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps({**meta, "expert_routing": routing}))
    notes = routing_notes(read_capture_folder(folder), MODEL, decoding(seconds), H200, 1)
    assert len(notes) == (said is not None) and all(said in note for note in notes if said)
    assert not routing_notes(read_capture_folder(folder), load_model("llama-3.1-8b"), decoding(seconds), H200, 1)


def test_validation_says_so(tmp_path: Path) -> None:
    """Qwen3-30B-A3B's capture with its steps three times as fast as they were."""
    recorded = DATA / "h200-recorded" / "qwen3-30b-a3b"
    for name in (
        "meta.json",
        "config.json",
        "lone.requests.jsonl.gz",
        "burst.requests.jsonl.gz",
        "lone.steps.jsonl.gz",
    ):
        (tmp_path / name).write_bytes((recorded / name).read_bytes())
    rows = [json.loads(line) for line in gzip.decompress((recorded / "burst.steps.jsonl.gz").read_bytes()).splitlines()]
    quick = ({**row, "t_schedule": row["t_schedule"] / 3, "t_update": row["t_update"] / 3} for row in rows)
    text = "".join(json.dumps(row) + "\n" for row in quick)
    (tmp_path / "burst.steps.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    notes = {each.name: each.notes for each in validate(tmp_path, gpu="h200", given_cache=True).workloads}
    assert any("experts were not routed evenly" in note for note in notes["burst"])
    assert any("how experts were routed is not known" in note for note in notes["lone"])
    assert recorded_routing(read_capture_folder(recorded)) == "unknown"


def test_captures_without_experts_have_no_such_note(tmp_path: Path) -> None:
    folder = capture(tmp_path / "own", {"chat": chat(20, 3, 0.06)})
    assert not any("expert" in note for each in validate(folder).workloads for note in each.notes)
