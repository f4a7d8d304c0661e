"""A profile goes on where it was interrupted: with the points that are whole, on the same GPU only."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from steelyard.errors import UserError
from steelyard.profile.resume import key_of, points_done

ABOUT = {"gpu": "NVIDIA H200", "sms": 132}
POINTS = [{"op": "gemm", "m": m, "n": 64, "k": 32} for m in (1, 2, 3)]
HEAD = json.dumps({"about": ABOUT}) + "\n"
LINES = [json.dumps({"point": point, "us": 3.0}) + "\n" for point in POINTS]


def test_a_new_file_gets_a_description(tmp_path: Path) -> None:
    out = tmp_path / "p.jsonl"
    assert points_done(out, ABOUT) == set()
    assert out.read_text() == HEAD


@pytest.mark.parametrize("kept", range(1, len(LINES[2])))
def test_half_a_last_line_is_removed(tmp_path: Path, kept: int) -> None:
    """Wherever the run was killed: also after the last brace, when only the end of the line is missing."""
    out = tmp_path / "p.jsonl"
    out.write_text(HEAD + "".join(LINES[:2]) + LINES[2][:kept])
    assert points_done(out, ABOUT) == {key_of(point) for point in POINTS[:2]}
    assert out.read_text() == HEAD + "".join(LINES[:2])
    assert points_done(out, ABOUT) == {key_of(point) for point in POINTS[:2]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps({"about": {"gpu": "NVIDIA H100"}}) + "\n", r"p\.jsonl:1: about\.gpu: a profile of 'NVIDIA H100'"),
        ('{"about": []}\n', r"p\.jsonl:1: about"),
        (HEAD + LINES[0][:20] + LINES[1], r"p\.jsonl:2: not valid JSON"),
        (HEAD + LINES[0] + LINES[0], r"p\.jsonl:3: point: was measured in line 2"),
        (HEAD + LINES[0].replace('"n": 64, ', "") + LINES[1], r"p\.jsonl:2: point\.n"),
        ("notes of mine, without an end", r"p\.jsonl:1: not valid JSON"),
        ("", r"p\.jsonl: about"),
    ],
)
def test_other_files_are_refused_and_left_alone(tmp_path: Path, text: str, message: str) -> None:
    out = tmp_path / "p.jsonl"
    out.write_text(text)
    with pytest.raises(UserError, match=message):
        points_done(out, ABOUT)
    assert out.read_text() == text


def test_a_packed_file_is_not_added_to(tmp_path: Path) -> None:
    out = tmp_path / "p.jsonl.gz"
    out.write_bytes(gzip.compress((HEAD + LINES[0]).encode()))
    with pytest.raises(UserError, match="is gzipped"):
        points_done(out, ABOUT)
