"""Tables in parts: the same rows, and the same bytes in a file, however they are divided."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.records import tables
from steelyard.records.columns import Column, in_parts
from steelyard.records.tables import write_table, write_tables


def table(first: int, rows: int) -> dict[str, Column]:
    number = np.arange(first, first + rows)
    return {
        "number": number,
        "half": number / 2,
        "name": np.array([f"row {each % 7}" for each in number], dtype=object),
    }


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.integers(1, 40))
def test_parts_are_the_same_rows_in_order(sizes: list[int], rows: int) -> None:
    firsts = np.cumsum([0, *sizes]).tolist()
    parts = list(in_parts((table(first, size) for first, size in zip(firsts, sizes, strict=False)), rows))
    lengths = [len(part["number"]) for part in parts]
    assert all(length == rows for length in lengths[:-1]) and lengths[-1] <= rows
    assert len(parts) == max(1, -(-sum(sizes) // rows))
    assert np.concatenate([part["number"] for part in parts]).tolist() == list(range(sum(sizes)))
    assert all((part["half"] == part["number"] / 2).all() for part in parts)


@pytest.mark.parametrize("sizes", [[0], [250], [100, 100], [3, 0, 120, 1, 99, 27]])
def test_a_file_does_not_tell_how_its_rows_came(
    sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROWS_PER_GROUP", 100)
    firsts = np.cumsum([0, *sizes]).tolist()
    write_table(table(0, sum(sizes)), tmp_path / "whole")
    write_tables((table(first, size) for first, size in zip(firsts, sizes, strict=False)), tmp_path / "parts")
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "parts").read_bytes()


def test_tables_are_asked_for_one_after_the_other_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a table is made, those before it were written but for the last few rows."""
    monkeypatch.setattr(tables, "ROWS_PER_GROUP", 100)
    alive: list[int] = []

    class Watched(dict[str, Column]):
        def __init__(self, columns: dict[str, Column]) -> None:
            super().__init__(columns)
            alive.append(1)

        def __del__(self) -> None:
            alive.pop()

    most = 0

    def made() -> Iterator[dict[str, Column]]:
        nonlocal most
        for first in range(0, 4000, 40):
            most = max(most, len(alive))
            yield Watched(table(first, 40))

    write_tables(made(), tmp_path / "parts")
    assert most <= 4
