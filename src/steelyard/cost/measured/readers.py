"""Tiles that share the memory: how soon all have been read.

A multiprocessor takes a tile, begins it, reads it, and takes the next. A block comes the sooner the fewer others are
reading: where all do, memory is what is slow, and where few do, only its latency. Tiles of one length begin and end
together, so that nobody reads while all begin. Tiles of different lengths do not, and those that are reading make up
for most of what the others spend on their begin, and for some of the idle time at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf


def all_read(tiles: Sequence[float], begin: float, lone: float, sms: int) -> float:
    """Microseconds until the last is done, taken in this order.

    ``tiles`` are what each takes to read while all multiprocessors do, ``begin`` what each takes before that, and
    ``lone`` the share of its time that a tile would take with nobody else reading.
    """
    beginning = deque((begin, tile) for tile in tiles[:sms])
    left = iter(tiles[sms:])
    now = read = 0.0  # all read alike: how much anyone has that did so from the first
    reading: list[float] = []  # by that count, when each is through
    while beginning or reading:
        slow = lone + (1.0 - lone) * len(reading) / sms
        done = now + (reading[0] - read) * slow if reading else inf
        if beginning and beginning[0][0] <= done:
            then, tile = beginning.popleft()
            read += (then - now) / slow
            now = then
            heappush(reading, read + tile)
        else:
            now, read = done, heappop(reading)
            following = next(left, None)
            if following is not None:
                beginning.append((now + begin, following))
    return now
