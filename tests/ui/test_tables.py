"""Tables as CSV: every row, and no formula that a spreadsheet would run."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from steelyard.records.tables import replace_table
from steelyard.ui.tables import csv_of


def test_text_that_looks_like_a_formula_is_marked(tmp_path: Path) -> None:
    names = np.array(["=1+1", "+x", "-x", "@x", "plain", 'a "quote", and\nmore'], dtype=object)
    replace_table({"name": names, "value": np.array([-1.5, 2, 3, 4, 5, 6])}, tmp_path / "t.parquet")
    rows = list(csv.reader("".join(csv_of(tmp_path / "t.parquet")).splitlines(keepends=True)))
    assert [row[0] for row in rows] == ["name", "'=1+1", "'+x", "'-x", "'@x", "plain", 'a "quote", and\nmore']
    assert rows[1][1] == "-1.5", "a negative number is a number"


def test_all_rows_are_there(tmp_path: Path) -> None:
    replace_table({"value": np.arange(50_001)}, tmp_path / "t.parquet")
    assert sum(part.count("\n") for part in csv_of(tmp_path / "t.parquet")) == 50_002
