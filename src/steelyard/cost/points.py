"""Measured points by column: a sequence of rows, arrays to compute with, and a file that opens fast.

A profile has tens of thousands of points, of which a model needs a few families or shapes. Columns can be read and
filtered without a dict for each point.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from steelyard.files.reading import read_bytes
from steelyard.files.writing import replacing

Row = dict[str, Any]
_Value = TypeVar("_Value")
Mask = NDArray[np.bool_]

_ABOUT, _VALUES, _THERE, _ENDS = "about", "values", "there", "ends"  # names of a file's arrays


@dataclass(frozen=True)
class Column:
    """One dimension of all points. Lists are concatenated; ``ends`` has the end of each."""

    values: NDArray[Any]
    there: Mask | None = None  # which points have it; None if all do
    ends: NDArray[np.int64] | None = None  # of lists

    @classmethod
    def of(cls, rows: Sequence[Row], name: str) -> Column:
        """The column of a key, which some rows may lack."""
        found = [row.get(name) for row in rows]
        first = next(value for value in found if value is not None)
        there = np.array([value is not None for value in found])
        mask = None if there.all() else there
        if isinstance(first, list):
            lists = [value or [] for value in found]
            return cls(np.array([each for one in lists for each in one]), mask, np.cumsum([len(one) for one in lists]))
        filler = type(first)()
        return cls(np.array([filler if value is None else value for value in found]), mask)

    def __len__(self) -> int:
        return len(self.values if self.ends is None else self.ends)

    def cells(self, at: NDArray[np.int64]) -> list[Any]:
        """The values of the points at these places, as Python numbers and lists."""
        if self.ends is None:
            found: list[Any] = self.values[at].tolist()
            return found
        starts = np.concatenate([[0], self.ends[:-1]])
        return [self.values[start:end].tolist() for start, end in zip(starts[at], self.ends[at], strict=True)]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Of lists."""
        assert self.ends is not None
        return np.diff(self.ends, prepend=0)


@dataclass(frozen=True)
class PointTable(Sequence[Row]):
    """Points of one family. As a sequence it consists of rows: dicts with the keys that each point has."""

    columns: Mapping[str, Column]
    size: int

    @classmethod
    def of(cls, rows: Sequence[Row]) -> PointTable:
        """From rows, if they are not points already."""
        if isinstance(rows, PointTable):
            return rows
        names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
        return cls({name: Column.of(rows, name) for name in names}, len(rows))

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows())

    @overload
    def __getitem__(self, at: int) -> Row: ...
    @overload
    def __getitem__(self, at: slice) -> list[Row]: ...
    def __getitem__(self, at: int | slice) -> Row | list[Row]:
        if isinstance(at, slice):
            return self.rows(np.arange(self.size)[at])
        return self.rows(np.arange(self.size)[at : at + 1 or None])[0]

    def rows(self, at: NDArray[np.int64] | None = None) -> list[Row]:
        """The points at these places (all if not given), as rows."""
        at = np.arange(self.size) if at is None else at
        found: list[Row] = [{} for _ in at]
        for name, column in self.columns.items():
            there = [True] * len(at) if column.there is None else column.there[at].tolist()
            for row, cell, has in zip(found, column.cells(at), there, strict=True):
                if has:
                    row[name] = cell
        return found

    def array(self, name: str) -> NDArray[Any]:
        """A column of numbers that all points have."""
        return self.columns[name].values

    def has(self, *names: str) -> Mask:
        """Which points have any of these keys."""
        found = np.zeros(self.size, dtype=np.bool_)
        for column in (self.columns[name] for name in names if name in self.columns):
            found |= True if column.there is None else column.there
        return found

    def are(self, name: str, value: float) -> Mask:
        """Which points have this value under a key."""
        return self.has(name) & (self.array(name) == value) if name in self.columns else self.has(name)


def save_points(path: Path, about: str, parts: Mapping[str, Mapping[str, PointTable]]) -> None:
    """Write points to one file, with each column of each family of each part as an array."""
    arrays: dict[str, NDArray[Any]] = {_ABOUT: np.array(about)}
    for part, families in parts.items():
        for family, points in families.items():
            for name, column in points.columns.items():
                kept = {_VALUES: column.values, _THERE: column.there, _ENDS: column.ends}
                arrays |= {f"{part}/{family}/{name}/{of}": array for of, array in kept.items() if array is not None}
    with replacing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def open_points(path: Path, *parts: str) -> tuple[str, list[Mapping[str, PointTable]]]:
    """The description of a file, and its parts: families by name. Columns are read on first use."""
    arrays = _arrays(path)
    kept: dict[str, dict[str, dict[str, list[str]]]] = {part: defaultdict(lambda: defaultdict(list)) for part in parts}
    for name in arrays:
        part, *rest = name.split("/")
        if part in kept:
            family, column, of = rest
            kept[part][family][column].append(of)
    found: list[Mapping[str, PointTable]] = [
        OnDemand({name: partial(_family, path, f"{part}/{name}", dict(columns)) for name, columns in families.items()})
        for part, families in kept.items()
    ]
    return str(arrays[_ABOUT]), found


class OnDemand(Mapping[str, _Value]):
    """Values by name, each made on first use."""

    def __init__(self, makers: Mapping[str, Callable[[], _Value]]) -> None:
        self._makers = makers
        self._made: dict[str, _Value] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __contains__(self, name: object) -> bool:
        return name in self._makers

    def __getitem__(self, name: str) -> _Value:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]


@cache
def _arrays(path: Path) -> Mapping[str, NDArray[Any]]:
    """A file's arrays, read into memory: a file handle cannot be shared between processes."""
    arrays: Mapping[str, NDArray[Any]] = np.load(BytesIO(read_bytes(path)))
    return arrays


def _family(path: Path, prefix: str, columns: Mapping[str, Sequence[str]]) -> PointTable:
    found = OnDemand({name: partial(_column, path, f"{prefix}/{name}", each) for name, each in columns.items()})
    return PointTable(found, len(found[next(iter(found))]))


def _column(path: Path, prefix: str, kept: Sequence[str]) -> Column:
    arrays = {of: _arrays(path)[f"{prefix}/{of}"] for of in kept}
    return Column(arrays[_VALUES], arrays.get(_THERE), arrays.get(_ENDS))
