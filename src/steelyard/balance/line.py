"""Those who wait, in an order that is asked for once each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Generic, TypeVar

Waits = TypeVar("Waits")


class Line(Generic[Waits]):
    """Lowest rank first, equals in order of coming. Joining, leaving and looking who is first cost a heap's step.

    A rank is asked for when somebody next looks who is first of several, not on joining: by then it is known what a
    tool return says about who has joined.
    """

    def __init__(self, rank: Callable[[Waits], float] | None = None) -> None:
        self._rank = rank
        self._joined = 0
        self._there: dict[str, tuple[int, Waits]] = {}  # in order of coming
        self._unranked: list[tuple[int, str]] = []
        self._heap: list[tuple[float, int, str]] = []  # may name some who have left

    def __len__(self) -> int:
        return len(self._there)

    def __contains__(self, name: str) -> bool:
        return name in self._there

    def __iter__(self) -> Iterator[Waits]:
        """In order of coming."""
        return (each for _, each in self._there.values())

    def add(self, name: str, who: Waits) -> None:
        """Join at the end of one's rank; whoever is in line stays where he is."""
        if name in self._there:
            return
        self._joined += 1
        self._there[name] = self._joined, who
        self._unranked.append((self._joined, name))

    def discard(self, name: str) -> None:
        """Leave, if one is in line at all."""
        self._there.pop(name, None)

    def first(self) -> Waits | None:
        """Whose turn it is; he stays in line."""
        there = self._there
        if len(there) < 2:  # nobody has to be ranked
            for _, only in there.values():
                return only
            self._unranked.clear()
            self._heap.clear()
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
