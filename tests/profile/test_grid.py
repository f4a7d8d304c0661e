"""Which points the profiler measures, and in what order."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise

from steelyard.model import Gemm, head_operators, load_model, operators
from steelyard.profile import batches
from steelyard.profile.grid import points
from support.paths import ROOT

DOCS = ROOT / "docs" / "profiles.md"
EVERYTHING = list(points())


def key(point: dict[str, object]) -> str:
    return json.dumps(point, sort_keys=True)


def test_each_point_once_and_the_same_each_time() -> None:
    assert max(Counter(key(point) for point, _ in EVERYTHING).values()) == 1
    assert [key(point) for point, _ in EVERYTHING] == [key(point) for point, _ in points()]


def test_a_run_cut_short_has_something_of_everything() -> None:
    start = EVERYTHING[: len(EVERYTHING) // 5]
    families = Counter(point["op"] for point, _ in EVERYTHING)
    early = Counter(point["op"] for point, _ in start)
    assert set(families) == set(early)
    assert {point["op"] for point, held_out in start if held_out} == {"gemm", "attention", "moe"}


def test_about_one_in_thirty_is_held_out() -> None:
    for family in ("gemm", "attention", "moe"):
        share = [held_out for point, held_out in EVERYTHING if point["op"] == family]
        assert 0.03 < sum(share) / len(share) < 0.1


def test_the_load_changes_little_by_little() -> None:
    """The GPU's clocks follow the load: neighbours in time are mostly neighbours in size."""
    gemms = [point["m"] for point, _ in EVERYTHING if point["op"] == "gemm"]
    leaps = sum(max(pair) > 64 * min(pair) for pair in pairwise(gemms))
    assert leaps < 0.02 * len(gemms)


def test_the_shapes_of_a_model_are_there() -> None:
    model = load_model("llama-3.1-70b")
    measured = {(point["n"], point["k"]) for point, held_out in EVERYTHING if point["op"] == "gemm" and not held_out}
    for tp in (2, 4, 8):
        found = [op for layer in model.layers for op in operators(model, layer, tp)]
        assert {(op.n, op.k) for op in (*found, *head_operators(model, tp)) if isinstance(op, Gemm)} <= measured


def test_batches_are_of_their_kind() -> None:
    for point, _ in EVERYTHING:
        if point["op"] == "attention":
            assert len(point["queries"]) == len(point["keys"]) <= 300
            assert all(1 <= query <= key for query, key in zip(point["queries"], point["keys"], strict=True))
            assert sum(point["keys"]) <= 4 * batches.MOST_KEYS


def test_the_documents_name_every_family() -> None:
    named = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| `.*$", DOCS.read_text(), re.M))))
    assert {point["op"] for point, _ in EVERYTHING} <= named
