"""Two profiles of a kind of GPU as one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from steelyard.errors import UserError
from tools.merge_profiles import main

ABOUT = {"gpu": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0"}
TINY = {"point": {"op": "tiny"}, "us": 1.0, "spread": 0.0}


def gemm(m: int, us: float, **more: Any) -> dict[str, Any]:
    return {"point": {"op": "gemm", "m": m, "n": 64, "k": 32}, **more, "us": us, "spread": 0.01}


def merge(tmp_path: Path, first: list[dict[str, Any]], second: list[dict[str, Any]], torch: str = "2.11.0") -> Any:
    files = tmp_path / "first.jsonl", tmp_path / "second.jsonl", tmp_path / "both.jsonl.gz"
    for file, lines, about in ((files[0], first, ABOUT), (files[1], second, {**ABOUT, "torch": torch})):
        file.write_text("\n".join(json.dumps(line) for line in ({"about": about}, *lines)) + "\n")
    main(*files)
    head, *rest = gzip.decompress(files[2].read_bytes()).decode().splitlines()
    return json.loads(head)["about"], [json.loads(line) for line in rest]


def test_what_the_first_lacks_is_carried_to_its_level(tmp_path: Path) -> None:
    """The second takes four times as long where both measured, so its own point would take a quarter there."""
    first = [TINY, gemm(8, 10.0), gemm(16, 20.0), gemm(24, 30.0)]
    second = [TINY, gemm(8, 40.0), gemm(16, 80.0), gemm(13, 60.0)]
    about, (other, *lines) = merge(tmp_path, first, second)
    assert other == TINY and "second GPU" in about["gemm"]
    assert {line["point"]["m"]: line["us"] for line in lines} == {8: 10.0, 13: 15.0, 16: 20.0, 24: 30.0}
    assert [line.get("carried", False) for line in lines] == [False, True, False, False]


def test_held_out_points_are_those_of_the_first_and_tell_nothing_of_the_level(tmp_path: Path) -> None:
    first = [gemm(8, 10.0), gemm(9, 10.0, held_out=True), gemm(16, 20.0)]
    second = [gemm(8, 10.0), gemm(9, 90.0), gemm(11, 12.0, held_out=True), gemm(13, 15.0)]
    _, lines = merge(tmp_path, first, second)
    assert {line["point"]["m"]: (line["us"], line.get("held_out", False)) for line in lines} == {
        8: (10.0, False),
        9: (10.0, True),
        13: (15.0, False),
        16: (20.0, False),
    }


def test_shapes_of_unknown_level_are_left_out(tmp_path: Path) -> None:
    _, lines = merge(tmp_path, [gemm(16, 20.0)], [gemm(8, 10.0), gemm(13, 15.0)])
    assert [line["point"]["m"] for line in lines] == [16]


def test_profiles_of_other_libraries_are_not_mixed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"second.jsonl: of torch 2.9.0, but .*first.jsonl of 2.11.0"):
        merge(tmp_path, [gemm(8, 10.0)], [gemm(8, 10.0)], torch="2.9.0")
