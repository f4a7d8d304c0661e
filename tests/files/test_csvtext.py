"""CSV from outside: every mistake with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from steelyard.errors import UserError
from steelyard.files.csvtext import csv_columns, csv_rows


def test_rows_by_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\n\n1,"x, y"\n')
    assert csv_columns(path) == ["a", "b"]
    assert list(csv_rows(path, ("b",))) == [(f"{path}:3", {"a": "1", "b": "x, y"})]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a\.csv:1: no column b; found 'none'"),
        ("a,c\n1,2\n", r"a\.csv:1: no column b"),
        ("a,b\n1\n", r"a\.csv:2: 1 columns where the first line names 2"),
        ("a,b\n1,2,3\n", r"a\.csv:2: 3 columns where the first line names 2"),
        ("a,b\n1," + "x" * 131_073, r"a\.csv:2: not valid CSV: field larger than field limit"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        list(csv_rows(path, ("b",)))
