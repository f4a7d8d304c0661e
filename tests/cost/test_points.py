"""Points by column: the same rows as the lines they came from, whichever way they are read."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.cost.bundle import FOLDER, Bundle, index_bundle, read_bundle, shipped_bundle
from steelyard.cost.measured import MeasuredSource
from steelyard.cost.points import PointTable, open_points
from steelyard.hardware import find_gpu
from steelyard.model import AttentionOperator, Layout, Recurrence, load_model, operators

WHOLE, PARTS = st.integers(-(2**40), 2**40), st.floats(allow_nan=False)
POINT = st.fixed_dictionaries(
    {"m": WHOLE, "us": PARTS},
    optional={
        "carried": st.just(True),
        "kernel": st.sampled_from(["64-16-64", "ä", ""]),
        "launch_us": PARTS,
        "keys": st.lists(WHOLE, min_size=1),
    },
)


def lines(gpu: str) -> Bundle:
    """The bundle as it was measured."""
    return read_bundle(FOLDER / f"{gpu}.jsonl.gz")


@given(st.lists(POINT, max_size=6))
def test_points_are_the_rows_they_came_from(rows: list[dict[str, Any]]) -> None:
    points = PointTable.of(rows)
    assert len(points) == len(rows) and list(points) == rows and PointTable.of(points) is points
    assert points[1:] == rows[1:] and [points[i] for i in range(-len(rows), len(rows))] == rows * 2
    assert points.has("keys").tolist() == ["keys" in row for row in rows]
    assert points.are("carried", True).tolist() == ["carried" in row for row in rows]
    chosen = np.flatnonzero(points.has("launch_us", "kernel"))
    assert points.rows(chosen) == [row for row in rows if "launch_us" in row or "kernel" in row]


def test_the_shipped_profile_is_what_was_measured() -> None:
    """If this fails after a change of the lines, `python -m tools.index_bundle` has not been run."""
    gpus = sorted(path.name.removesuffix(".jsonl.gz") for path in FOLDER.glob("*.jsonl.gz"))
    assert gpus == sorted(path.stem for path in FOLDER.glob("*.npz")) == ["h200"]
    kept, measured = shipped_bundle("h200"), lines("h200")
    assert kept is not None and kept.about == measured.about
    for ours, theirs in ((kept.families, measured.families), (kept.held_out, measured.held_out)):
        assert list(ours) == list(theirs)
        for family, rows in theirs.items():
            assert list(ours[family]) == rows
            assert [type(value) for row in ours[family][:50] for value in row.values()] == [
                type(row[key]) for row, kept_row in zip(rows[:50], ours[family][:50], strict=True) for key in kept_row
            ]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_both_give_the_same_times_to_the_last_bit(model: str) -> None:
    shipped = shipped_bundle("h200")
    assert shipped is not None
    one, other = (MeasuredSource(find_gpu("h200"), bundle) for bundle in (shipped, lines("h200")))
    spec, rows = load_model(model), np.arange(0.0, 700.0)
    for operator in operators(spec, spec.layers[0], Layout(tp=2)):
        if isinstance(operator, AttentionOperator):
            decodes = [each.decode_attention(operator, 2.0) for each in (one, other)]
            assert decodes[0] is not None and decodes[1] is not None
            assert decodes[0].curve(37) == decodes[1].curve(37)
            found = [each.prefill_attention(operator, 2.0) for each in (one, other)]
            assert found[0] is not None and found[1] is not None
            assert found[0].seconds([(300, 40), (20, 0)]) == found[1].seconds([(300, 40), (20, 0)])
        elif not isinstance(operator, Recurrence):
            times = [each.rows(operator, rows) for each in (one, other)]
            if times[0] is None or times[1] is None:
                assert times == [None, None]
            else:
                assert times[0].seconds.tobytes() == times[1].seconds.tobytes()
                assert times[0].provenance.tobytes() == times[1].provenance.tobytes()


def test_a_family_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    gemm, norm = [{"m": 1, "n": 2, "k": 3, "us": 0.5}], [{"m": 4, "width": 8, "us": 1.5}]
    index_bundle(Bundle({"gpu": "h200"}, {"gemm": gemm, "norm": norm}, {"norm": norm}), tmp_path / "x.npz")
    about, (families, held_out) = open_points(tmp_path / "x.npz", "points", "held_out")
    assert about == '{"gpu": "h200"}' and list(families) == ["gemm", "norm"] and list(held_out) == ["norm"]
    assert "moe" not in families and families.get("moe", []) == []
    assert list(pickle.loads(pickle.dumps(families))["gemm"]) == gemm and list(held_out["norm"]) == norm
