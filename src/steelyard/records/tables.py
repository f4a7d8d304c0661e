"""Columns as tables of other libraries, and to Parquet, byte for byte the same for the same run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from steelyard.errors import UserError
from steelyard.files.writing import replacing, written
from steelyard.records.columns import in_parts

ROWS_PER_GROUP = 1 << 20

# Counters move little from row to row and times share their leading bytes: these two encodings make
# the steps of a long run both smaller and faster to write than dictionaries do.
_ENCODING = {"i": "DELTA_BINARY_PACKED", "f": "BYTE_STREAM_SPLIT"}


def write_table(columns: Mapping[str, np.ndarray], path: Path) -> None:
    """Write a new file of the columns."""
    write_tables([columns], path)


def replace_table(columns: Mapping[str, np.ndarray], path: Path) -> None:
    """Write a file of the columns, in place of one that may be there."""
    with replacing(path) as file:
        _write([columns], file)


def write_tables(tables: Iterable[Mapping[str, np.ndarray]], path: Path) -> None:
    """Write a new file of the rows of all tables, which have the same columns.

    Rows are written group by group, so that memory stays bounded however many there are. The bytes do not depend on how
    rows are divided into tables.
    """
    with written(path) as file:
        _write(tables, file)


def _write(tables: Iterable[Mapping[str, np.ndarray]], file: BinaryIO) -> None:
    parts = in_parts(tables, ROWS_PER_GROUP)
    columns = next(parts)
    schema = pa.schema([pa.field(name, _arrow_type(column)) for name, column in columns.items()])
    numeric = {name: _ENCODING[c.dtype.kind] for name, c in columns.items() if c.dtype.kind in _ENCODING}
    with pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[name for name in columns if name not in numeric],  # type: ignore[arg-type]
        column_encoding=numeric,
    ) as writer:
        for part in chain([columns], parts):
            arrays = [pa.array(part[field.name], type=field.type) for field in schema]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema), row_group_size=ROWS_PER_GROUP)


def to_arrow(columns: Mapping[str, np.ndarray]) -> pa.Table:
    """The columns as an Arrow table."""
    return pa.table({name: pa.array(column, type=_arrow_type(column)) for name, column in columns.items()})


def to_pandas(columns: Mapping[str, np.ndarray]) -> Any:
    """The columns as a pandas frame, where pandas is installed."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise UserError("pandas is not installed; `pip install pandas`, or use to_arrow()") from None
    return pandas.DataFrame(dict(columns))


def to_polars(columns: Mapping[str, np.ndarray]) -> Any:
    """The columns as a polars frame, where polars is installed."""
    try:
        polars = import_module("polars")
    except ImportError:
        raise UserError("polars is not installed; `pip install polars`, or use to_arrow()") from None
    return polars.from_arrow(to_arrow(columns))


def _arrow_type(column: np.ndarray) -> pa.DataType:
    return pa.string() if column.dtype.kind in "OUT" else pa.from_numpy_dtype(column.dtype)
