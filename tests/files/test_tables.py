"""Tables in Parquet that are cut, changed or made up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steelyard.errors import UserError
from steelyard.files import tables
from steelyard.files.tables import column_names, read_columns
from steelyard.records.tables import write_table

COLUMNS = {"number": np.arange(50), "time": np.linspace(0, 1, 50), "name": np.array(["a", "b"] * 25, dtype=object)}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "day=1" / "t.parquet"
    path.parent.mkdir()
    write_table(COLUMNS, path)
    return path


def test_what_was_written_is_read(table: Path) -> None:
    found = read_columns(table)
    assert list(found) == column_names(table) == list(COLUMNS), "no column is made of the folder's name"
    assert all((found[name] == column).all() for name, column in COLUMNS.items())
    assert list(read_columns(table, ["time"])) == ["time"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.integers(0, 5000), st.binary(min_size=1, max_size=8), st.booleans())
def test_changed_bytes_are_read_or_refused(table: Path, place: int, put: bytes, cut: bool) -> None:
    data = table.read_bytes()
    place %= len(data)
    other = table.with_name("other.parquet")
    other.write_bytes(data[:place] + put + (b"" if cut else data[place + len(put) :]))
    for read in (read_columns, column_names):
        try:
            read(other)
        except UserError as error:
            assert "\n" not in str(error) and "other.parquet" in str(error)


def test_missing_columns_and_other_files(table: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no table")
    with pytest.raises(UserError, match="text: cannot be read as a Parquet table"):
        read_columns(tmp_path / "text")
    with pytest.raises(UserError, match="is a folder"):
        read_columns(tmp_path)
    with pytest.raises(UserError, match="absent"):
        read_columns(table, ["absent"])


def test_few_bytes_may_be_many_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "MOST_CELLS", 1 << 16)
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"a": pa.array(np.zeros(1 << 17))}), path)
    assert path.stat().st_size < 10_000
    with pytest.raises(UserError, match="more than 65,536 values"):
        read_columns(path)
