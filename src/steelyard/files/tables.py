"""Parquet from outside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from steelyard.errors import UserError, shown
from steelyard.files.limits import MOST_CELLS
from steelyard.files.reading import opened
from steelyard.quoting import shortened

if TYPE_CHECKING:
    import pyarrow.compute as pc


def read_columns(
    path: Path, names: Sequence[str] | None = None, rows: pc.Expression | None = None
) -> dict[str, np.ndarray]:
    """Columns of a table, all if not given, with the selected rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with opened(path) as file:
        try:
            metadata = pq.read_metadata(file)
            if metadata.num_rows * metadata.num_columns > MOST_CELLS:
                raise UserError(f"{shown(path)}: more than {MOST_CELLS:,} values; give a smaller table")
            table = pq.read_table(file, columns=None if names is None else list(names), filters=rows)
            return {name: table[name].to_numpy() for name in table.column_names}
        except (pa.ArrowException, ValueError, KeyError) as error:
            raise UserError(f"{shown(path)}: cannot be read as a Parquet table: {_one_line(error)}") from None


def column_names(path: Path) -> list[str]:
    """The names of a table's columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with opened(path) as file:
        try:
            names: list[str] = pq.read_schema(file).names
            return names
        except (pa.ArrowException, ValueError) as error:
            raise UserError(f"{shown(path)}: cannot be read as a Parquet table: {_one_line(error)}") from None


def table_rows(path: Path, most: int) -> Iterator[list[tuple[object, ...]]]:
    """All rows of a table, at most so many at a time, the names of its columns first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with opened(path) as file:
        try:
            table = pq.ParquetFile(file)
            yield [tuple(table.schema_arrow.names)]
            for batch in table.iter_batches(most):
                yield list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        except (pa.ArrowException, ValueError) as error:
            raise UserError(f"{shown(path)}: cannot be read as a Parquet table: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return shortened(" ".join(str(error).split()))
