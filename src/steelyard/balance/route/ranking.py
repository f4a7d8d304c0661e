"""Replicas in order of load, and in order of number."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

_NUMBER_BITS, _LOAD_BITS = 24, 32
_NUMBER, _LOAD = (1 << _NUMBER_BITS) - 1, (1 << _LOAD_BITS) - 1


class Ranking:
    """Replicas by load, then by number. Full ones come last.

    A change moves one entry of a short list. Load and number are packed into one integer, which compares faster than a
    pair.
    """

    __slots__ = ("_keys", "_order")

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._keys = {number: number for number in numbers}  # all without load
        self._order = sorted(self._keys.values())

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, number: int) -> bool:
        return number in self._keys

    def __iter__(self) -> Iterator[int]:
        """Numbers, least loaded first."""
        return (key & _NUMBER for key in self._order)

    def load(self, number: int) -> int:
        """The load of a replica."""
        return self._keys[number] >> _NUMBER_BITS & _LOAD

    def is_full(self, number: int) -> bool:
        """Whether a replica is full."""
        return self._keys[number] >> _NUMBER_BITS > _LOAD

    def first(self) -> int:
        """The least loaded replica. There must be at least one."""
        return self._order[0] & _NUMBER

    def put(self, number: int, load: int, full: bool = False) -> None:
        """A replica's load has changed, or it is new."""
        key = (full << _LOAD_BITS | load) << _NUMBER_BITS | number
        before = self._keys.get(number)
        if before == key:
            return
        order = self._order
        if before is not None:
            del order[bisect_left(order, before)]
        self._keys[number] = key
        insort(order, key)

    def update(self, number: int, load: int) -> None:
        """A replica's load has changed; nothing happens if it is not ranked."""
        before = self._keys.get(number)
        if before is not None:
            order = self._order
            del order[bisect_left(order, before)]
            key = self._keys[number] = load << _NUMBER_BITS | number
            insort(order, key)

    def remove(self, number: int) -> None:
        """Remove a replica."""
        before = self._keys.pop(number, None)
        if before is not None:
            del self._order[bisect_left(self._order, before)]


def set_member(numbers: list[int], number: int, present: bool) -> None:
    """Add a number to a sorted list, or remove it. Does nothing if that is already done."""
    index = bisect_left(numbers, number)
    if (index < len(numbers) and numbers[index] == number) == present:
        return
    if present:
        numbers.insert(index, number)
    else:
        del numbers[index]
