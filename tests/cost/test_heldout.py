"""The shipped profile on points it was not given."""

from __future__ import annotations

from steelyard.cost.bundle import Bundle, Row, shipped_bundle
from steelyard.cost.heldout import ALL, held_out_errors
from steelyard.hardware import find_gpu
from tools.held_out_errors import table


def bundle() -> Bundle:
    found = shipped_bundle("h200")
    assert found is not None
    return found


def dims(row: Row) -> str:
    return str(
        sorted((key, value) for key, value in row.items() if key not in ("us", "spread", "launch_us", "carried"))
    )


def test_held_out_points_are_not_among_the_others() -> None:
    whole = bundle()
    for family in ("gemm", "attention", "moe"):
        known, held_out = ({dims(row) for row in of[family]} for of in (whole.families, whole.held_out))
        assert len(held_out) >= 60 and not known & held_out


def test_operators_are_predicted_within_a_few_percent() -> None:
    errors = {(each.family, each.kind): each for each in held_out_errors(bundle(), find_gpu("h200"))}
    for family, p95 in (("gemm", 0.10), ("attention", 0.13), ("moe", 0.10)):
        overall = errors[family, ALL]
        assert overall.points >= 60
        assert overall.median < 0.03 and overall.p95 < p95 and abs(overall.bias) < 0.02
    assert errors["gemm", "other matrices"].median < 0.06


def test_the_table_has_a_line_for_each_kind() -> None:
    errors = held_out_errors(bundle(), find_gpu("h200"))
    lines = table(errors).splitlines()
    assert len(lines) == len(errors) + 2
    assert all(line.count("|") == 6 for line in lines)
