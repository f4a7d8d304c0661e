"""Connections whose answers flow: read a few at a time, after everything else.

An engine sends the tokens of a step to all streams at once. An event loop reads everything that it finds readable
before it does anything else, so a first token would wait until hundreds of connections were read. These connections are
watched apart: the loop sees only that any of them is readable, and each time a few are read.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from typing import Protocol

_AT_ONCE = 3  # connections that are read before the event loop looks for others; chosen


class Flowing(Protocol):
    """A connection whose file nobody else reads."""

    def read(self) -> None:
        """Read what has come."""


class FlowingSet:
    """All of them to one server."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, Flowing] = {}  # by file
        self._readable: deque[int] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None  # while there are any

    def add(self, file: int, connection: Flowing) -> None:
        """Read a connection from now on."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._selector.fileno(), self._read_some)
        self._selector.register(file, selectors.EVENT_READ)
        self._connections[file] = connection

    def remove(self, file: int) -> None:
        """Leave a connection alone, before it is closed."""
        self._selector.unregister(file)
        del self._connections[file]
        if not self._connections and self._loop is not None:
            self._loop.remove_reader(self._selector.fileno())
            self._loop = None

    def _read_some(self) -> None:
        if not self._readable:
            self._readable.extend(key.fd for key, _ in self._selector.select(0))
        for _ in range(min(_AT_ONCE, len(self._readable))):
            connection = self._connections.get(self._readable.popleft())
            if connection is not None:  # else it was removed since
                connection.read()
