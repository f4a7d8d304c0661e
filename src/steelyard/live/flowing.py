"""Connections whose answers flow: read a few at a time, after everything else.

An engine sends the tokens of a step to all streams at once. An event loop reads everything that it finds readable
before it does anything else, so a first token would wait until hundreds of connections were read. These connections are
watched apart: the loop sees only that any of them is readable, and each time a few are read.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable
from typing import Protocol

_AT_ONCE = 3  # connections that are read before the event loop looks for others; chosen


class Flowing(Protocol):
    """A connection whose file nobody else reads."""

    def read(self) -> None:
        """Read what has come."""


class FlowingSet:
    """All of them to one server."""

    def __init__(self) -> None:
        self._watch: _Watch | None = None  # while there are any
        self._connections: dict[int, Flowing] = {}  # by file
        self._readable: deque[int] = deque()

    def add(self, file: int, connection: Flowing) -> None:
        """Read a connection from now on."""
        if self._watch is None:
            self._watch = _Watch(self._read_some)
        self._watch.selector.register(file, selectors.EVENT_READ)
        self._connections[file] = connection

    def remove(self, file: int) -> None:
        """Leave a connection alone, before it is closed."""
        assert self._watch is not None, "it was added"
        self._watch.selector.unregister(file)
        del self._connections[file]
        if not self._connections:
            self._readable.clear()
            self._watch.close()
            self._watch = None

    def _read_some(self) -> None:
        if self._watch is not None and not self._readable:
            self._readable.extend(key.fd for key, _ in self._watch.selector.select(0))
        for _ in range(min(_AT_ONCE, len(self._readable))):
            if not self._readable:  # all have ended
                return
            connection = self._connections.get(self._readable.popleft())
            if connection is not None:  # else it was removed since
                connection.read()


class _Watch:
    """Watches files, and is watched by the event loop as one."""

    def __init__(self, readable: Callable[[], None]) -> None:
        self.selector = selectors.DefaultSelector()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.selector.fileno(), readable)

    def close(self) -> None:
        self._loop.remove_reader(self.selector.fileno())
        self.selector.close()
