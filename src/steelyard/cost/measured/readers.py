"""Tiles that share the memory bandwidth: when all of them have been read.

A multiprocessor takes a tile, starts it, reads it, and takes the next. It reads faster the fewer others read: with all
reading, bandwidth is the limit; with few, only latency. Tiles of one length start and end together, so no tile is read
while all start. Tiles of different lengths do not, and those being read use the bandwidth that starting ones leave, and
some of the idle time at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from heapq import heapify, heappop, heappush
from math import inf


def all_read(tiles: Sequence[float], begin: float, lone: float, sms: int) -> float:
    """Microseconds until the last tile is done, taken in this order.

    ``tiles`` are read times while all multiprocessors read, ``begin`` is the start of each, and ``lone`` the factor on
    a tile's read time if no other tile is read.
    """
    if not tiles:
        return 0.0
    slower = _slower(lone, sms)
    now, read = begin, begin / slower[0]  # ``read``: how much a tile would have read that started first
    reading = [read + tile for tile in tiles[:sms]]  # heap: the value of ``read`` at which each tile ends
    heapify(reading)
    left, starts = iter(tiles[sms:]), deque[float]()  # tiles that wait, and when those that were taken start to read
    waiting = len(tiles) - len(reading)
    while reading or starts:
        done = now + (reading[0] - read) * slower[len(reading)] if reading else inf
        if starts and starts[0] <= done:
            start = starts.popleft()
            read += (start - now) / slower[len(reading)]
            now = start
            heappush(reading, read + next(left))
        else:
            now, read = done, heappop(reading)
            if waiting:
                waiting -= 1
                starts.append(now + begin)
    return now


@cache
def _slower(lone: float, sms: int) -> list[float]:
    """The factor on a tile's read time by the number of multiprocessors that read."""
    return [lone + (1.0 - lone) * count / sms for count in range(sms + 1)]
