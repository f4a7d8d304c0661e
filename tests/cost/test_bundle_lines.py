"""Bundles that were cut, thinned or edited: refused with line and key, never a wrong time or a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steelyard.cost.bundle import FOLDER
from steelyard.cost.bundle_lines import DIMENSIONS, bundle_lines
from steelyard.cost.profiles import open_profile
from steelyard.errors import UserError
from steelyard.files.reading import read_text
from steelyard.hardware import find_gpu
from steelyard.model import load_model

HEAD = '{"about": {"gpu": "NVIDIA H200"}}'
SPARE = 200  # lines of a family that are enough for each


@pytest.fixture(scope="module")
def shipped() -> list[str]:
    return read_text(FOLDER / "h200.jsonl.gz").splitlines()


@pytest.fixture(scope="module")
def by_family(shipped: list[str]) -> dict[str, dict[str, Any]]:
    """A point of each family."""
    found: dict[str, dict[str, Any]] = {}
    for line in shipped[1:]:
        row = json.loads(line)
        found.setdefault(row["point"]["op"], row)
    return found


def opened(path: Path, *lines: str) -> None:
    path.write_text("\n".join(lines) + "\n")
    open_profile(path, find_gpu("h200"), load_model("llama-3.1-8b"), 1)


def test_every_family_is_known(by_family: dict[str, dict[str, Any]]) -> None:
    assert by_family.keys() == DIMENSIONS.keys()


@pytest.mark.parametrize("op", DIMENSIONS)
def test_a_point_without_a_key_is_refused_with_its_line(
    tmp_path: Path, by_family: dict[str, dict[str, Any]], op: str
) -> None:
    path, row = tmp_path / "b.jsonl", by_family[op]
    for key in ("us", "point", *row["point"]):
        lines = json.dumps({**row, "point": {k: v for k, v in row["point"].items() if k != key}})
        if key in row:
            lines = json.dumps({k: v for k, v in row.items() if k != key})
        with pytest.raises(UserError, match=rf"b\.jsonl:3: (point\.|point: )?{key}\b"):
            opened(path, HEAD, "", lines)


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "m": lambda row: row["point"].update(m=0),
    "n": lambda row: row["point"].update(n=4096.5),
    "k": lambda row: row["point"].update(k="4096"),
    "op": lambda row: row["point"].update(op="gem"),
    "us": lambda row: row.update(us=-1),
    "launch_us": lambda row: row.update(launch_us=None),
    "spread": lambda row: row.update(spread=True),
}


@pytest.mark.parametrize("key", WRONG)
def test_wrong_values_are_refused(tmp_path: Path, by_family: dict[str, dict[str, Any]], key: str) -> None:
    row = json.loads(json.dumps(by_family["gemm"]))
    WRONG[key](row)
    with pytest.raises(UserError, match=rf"b\.jsonl:2: (point\.)?{key}: .*found"):
        opened(tmp_path / "b.jsonl", HEAD, json.dumps(row))


@pytest.mark.parametrize(
    "change",
    [
        {"queries": []},
        {"keys": [64, 64]},
        {"queries": [65]},
        {"queries": "1"},
        {"keys": [1 << 40]},
        {"kv_heads": 3},
        {"window": 0},
        {"heads": 10**9},
    ],
)
def test_batches_of_attention(tmp_path: Path, by_family: dict[str, dict[str, Any]], change: dict[str, Any]) -> None:
    row = by_family["attention"]
    with pytest.raises(UserError, match=r"b\.jsonl:2: point\."):
        opened(tmp_path / "b.jsonl", HEAD, json.dumps({**row, "point": {**row["point"], **change}}))


@pytest.mark.parametrize(
    "head",
    [
        '{"about": []}',
        '{"about": {}}',
        '{"about": null}',
        "{}",
        "[]",
        '{"about": {"gpu": 3}}',
        '{"about": {"gpu": "NVIDIA A100-SXM4-80GB"}}',
        '{"about": {"gpu": "another"}}',
        '{"about": {"gpu": "h200", "kept_up_tflops": 0}}',
    ],
)
def test_descriptions(tmp_path: Path, by_family: dict[str, dict[str, Any]], head: str) -> None:
    with pytest.raises(UserError, match=r"b\.jsonl:1: "):
        opened(tmp_path / "b.jsonl", head, json.dumps(by_family["tiny"]))


@pytest.mark.parametrize("count", [1, 2, 10, 100])
def test_a_truncated_bundle(tmp_path: Path, shipped: list[str], count: int) -> None:
    with pytest.raises(UserError, match=r"b\.jsonl: "):
        opened(tmp_path / "b.jsonl", *shipped[:count])


@pytest.mark.parametrize("every", [10, 100])
def test_a_thinned_bundle(tmp_path: Path, shipped: list[str], every: int) -> None:
    with pytest.raises(UserError, match=r"b\.jsonl: gemm: .* measure more"):
        opened(tmp_path / "b.jsonl", shipped[0], *shipped[1::every])


def test_too_few_experts(tmp_path: Path, shipped: list[str]) -> None:
    experts = [line for line in shipped if '"op":"moe"' in line][:SPARE:40]
    with pytest.raises(UserError, match=r"b\.jsonl: moe: "):
        opened(tmp_path / "b.jsonl", HEAD, *experts)


def test_a_point_twice(tmp_path: Path, by_family: dict[str, dict[str, Any]]) -> None:
    row = by_family["norm"]
    again = {**row, "point": dict(reversed(row["point"].items()))}
    with pytest.raises(UserError, match=r"b\.jsonl:3: point: was measured in line 2 already"):
        opened(tmp_path / "b.jsonl", HEAD, json.dumps(row), json.dumps(again))


def test_a_point_that_could_not_be_measured_needs_no_time(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text(f'{HEAD}\n{{"point": {{"op": "gemm", "m": 1}}, "error": "out of memory"}}\n')
    assert len(list(bundle_lines(path))) == 2
