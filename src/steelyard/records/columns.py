"""Types of numeric columns, and tables that come in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Column = NDArray[Any]


def in_parts(tables: Iterable[Mapping[str, Column]], rows: int) -> Iterator[dict[str, Column]]:
    """The rows of some tables with the same columns, ``rows`` at a time; the last part has the rest.

    Never more than a part and the table at hand are in memory. Tables without rows are one part without rows.
    """
    waiting: list[Mapping[str, Column]] = []
    count, given = 0, False
    for table in tables:
        waiting.append(table)
        count += len(next(iter(table.values())))
        if count < rows:
            continue
        whole = _joined(waiting)
        for first in range(0, count - rows + 1, rows):
            yield {name: column[first : first + rows] for name, column in whole.items()}
            given = True
        count %= rows
        waiting = [{name: column[len(column) - count :].copy() for name, column in whole.items()}]
        del whole
    if count or (waiting and not given):
        yield _joined(waiting)


def _joined(tables: Sequence[Mapping[str, Column]]) -> dict[str, Column]:
    if len(tables) == 1:
        return dict(tables[0])
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
