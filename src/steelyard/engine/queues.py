"""The waiting queue: first come first served, or lowest priority value first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Protocol

from steelyard.engine.request import Request


class WaitingQueue(Protocol):
    """What the scheduler needs of a waiting queue."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...
    def add(self, r: Request) -> None: ...
    def head(self) -> Request: ...
    def pop(self) -> Request: ...
    def put_back(self, r: Request) -> None: ...
    def remove(self, r: Request) -> None: ...


class FirstCome(deque[Request]):
    """First come, first served; a request that is put back goes to the front."""

    add = deque.append
    pop = deque.popleft
    put_back = deque.appendleft

    def head(self) -> Request:
        return self[0]


class ByPriority:
    """Lowest priority value first, then earliest arrival, then lowest id as text (vLLM compares ids as strings)."""

    def __init__(self, waiting: Iterable[Request] = ()) -> None:
        self._heap: list[tuple[int, float, str, Request]] = [self._entry(r) for r in waiting]
        heapify(self._heap)

    @staticmethod
    def _entry(r: Request) -> tuple[int, float, str, Request]:
        return (r.priority, r.arrival, str(r.index), r)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (entry[3] for entry in self._heap)

    def add(self, r: Request) -> None:
        heappush(self._heap, self._entry(r))

    put_back = add

    def head(self) -> Request:
        return self._heap[0][3]

    def pop(self) -> Request:
        return heappop(self._heap)[3]

    def remove(self, r: Request) -> None:
        self._heap.remove(self._entry(r))
        heapify(self._heap)
