"""Replicas in order of load, kept in order as loads change."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

Load = tuple[float, ...]


class Ranking:
    """Least first, equals by number. A change moves one entry: a search and a shift of a short list."""

    __slots__ = ("_loads", "_order")

    def __init__(self) -> None:
        self._loads: dict[int, Load] = {}
        self._order: list[tuple[Load, int]] = []

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, number: int) -> bool:
        return number in self._loads

    def __iter__(self) -> Iterator[int]:
        """Numbers, least loaded first."""
        return (number for _, number in self._order)

    def load(self, number: int) -> Load:
        """What a replica is ranked by."""
        return self._loads[number]

    def first(self) -> int | None:
        """The least loaded."""
        return self._order[0][1] if self._order else None

    def put(self, number: int, *load: float) -> None:
        """A replica's load has changed, or it is new."""
        before = self._loads.get(number)
        if before == load:
            return
        if before is not None:
            del self._order[bisect_left(self._order, (before, number))]
        self._loads[number] = load
        insort(self._order, (load, number))

    def remove(self, number: int) -> None:
        """A replica is no more."""
        before = self._loads.pop(number, None)
        if before is not None:
            del self._order[bisect_left(self._order, (before, number))]
