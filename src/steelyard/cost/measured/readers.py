"""Tiles that share the memory bandwidth: when all of them have been read.

A multiprocessor takes a tile, starts it, reads it, and takes the next. It reads faster the fewer others read: with all
reading, bandwidth is the limit; with few, only latency. Tiles of one length start and end together, so no tile is read
while all start. Tiles of different lengths do not, and those being read use the bandwidth that starting ones leave, and
some of the idle time at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf


def all_read(tiles: Sequence[float], begin: float, lone: float, sms: int) -> float:
    """Microseconds until the last tile is done, taken in this order.

    ``tiles`` are read times while all multiprocessors read, ``begin`` is the start of each, and ``lone`` the factor on
    a tile's read time if no other tile is read.
    """
    beginning = deque((begin, tile) for tile in tiles[:sms])
    left = iter(tiles[sms:])
    now = read = 0.0  # ``read``: how much a tile would have read that started first
    reading: list[float] = []  # heap: the value of ``read`` at which each tile ends
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
