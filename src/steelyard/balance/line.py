"""A priority queue whose ranks are computed once per entry, as late as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

Waits = TypeVar("Waits")


class Line(Generic[Waits]):
    """Lowest rank first, equals in the order in which they joined. Joining, leaving and looking cost a heap's step.

    A rank is computed when `first` is next called with several entries in line, not on joining: by then the estimate
    that follows from a tool return is known.
    """

    def __init__(self, rank: Callable[[Waits], float] | None = None) -> None:
        self._rank = rank
        self._joined = 0
        self._there: dict[str, tuple[int, Waits]] = {}  # in the order of joining
        self._unranked: list[tuple[int, str]] = []
        self._heap: list[tuple[float, int, str]] = []  # may name entries that have left

    def __len__(self) -> int:
        return len(self._there)

    def __contains__(self, name: str) -> bool:
        return name in self._there

    def __iter__(self) -> Iterator[Waits]:
        """In the order of joining."""
        return (each for _, each in self._there.values())

    def add(self, name: str, entry: Waits) -> None:
        """Join behind entries of the same rank. An entry that is in line stays where it is."""
        if name in self._there:
            return
        self._joined += 1
        self._there[name] = self._joined, entry
        self._unranked.append((self._joined, name))

    def discard(self, name: str) -> None:
        """Leave the line. Does nothing if the entry is not in line."""
        if self._there.pop(name, None) is not None and not self._there:
            self._unranked.clear()
            self._heap.clear()

    def first(self) -> Waits | None:
        """The first entry, which stays in line; None if the line is empty."""
        there = self._there
        if len(there) < 2:  # no rank is needed
            for _, only in there.values():
                return only
            return None
        if self._unranked:
            for joined, name in self._unranked:
                found = there.get(name)
                if found is not None and found[0] == joined:
                    heappush(self._heap, (self._rank(found[1]) if self._rank else 0.0, joined, name))
            self._unranked.clear()
        while self._heap:
            _, joined, name = self._heap[0]
            found = there.get(name)
            if found is not None and found[0] == joined:
                return found[1]
            heappop(self._heap)
        return None
