"""Answers of engines as they come, and the connections that they come on.

A library would do, but takes as long for a token as an engine's step: a token here costs one callback.

A part that a request waits for first is read and passed on at once. Further ones are read a few at a time: requests and
first tokens that come meanwhile go before them.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

from steelyard.live.flowing import FlowingSet

_MOST_IDLE = 1024  # connections kept open to one engine
_MOST_READ = 1 << 16  # bytes that are read of one connection before others get their turn
_BROKE_OFF = "the connection broke off"


class UpstreamFailure(Exception):
    """An engine cannot be reached, or broke off. ``begun``: any part of its answer had come, or nobody wants it."""

    def __init__(self, why: str, begun: bool = False) -> None:
        super().__init__(why)
        self.begun = begun


class UpstreamAnswer:
    """An answer as it comes. `take` gives its next part, and None at its end."""

    def __init__(self, connection: UpstreamConnection) -> None:
        self._connection = connection
        self._parts: list[bytes] = []
        self._use: Callable[[bytes], None] | None = None
        self._problem: Exception | None = None  # what a part was used for has failed
        self._waiter: asyncio.Future[None] | None = None
        self.status = 0
        self.headers: dict[str, str] = {}
        self.headed = self.begun = self.over = self.abandoned = False
        self.failure = ""

    async def take(self) -> bytes | None:
        """All that has come since the last time, at least a byte."""
        while not self._parts:
            if self.failure:
                raise UpstreamFailure(self.failure, begun=True)
            if self.over:
                return None
            await self.wait()
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def each(self, use: Callable[[bytes], None]) -> None:
        """Have every part used as soon as it is read, up to the end. What ``use`` raises is raised here."""
        self._use = use
        try:
            parts, self._parts = self._parts, []
            if parts:
                use(b"".join(parts))
            while not self.over:
                if self._problem is not None:
                    raise self._problem
                if self.failure:
                    raise UpstreamFailure(self.failure, begun=True)
                await self.wait()
        finally:
            self._use = None

    async def whole(self) -> bytes:
        """All of it."""
        found = []
        while (part := await self.take()) is not None:
            found.append(part)
        return b"".join(found)

    def abandon(self) -> None:
        """Nobody wants the rest: tell the engine by closing the connection."""
        self.abandoned = True
        if not self.over:
            self._connection.close()

    def add(self, data: bytes) -> None:
        self.begun = True
        if self._use is None:
            self._parts.append(data)
            self.wake()
        elif self._problem is None:
            try:
                self._use(data)
            except Exception as problem:  # it is not the parser's, which has called this
                self._problem = problem
                self.abandon()
                self.wake()

    async def wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class UpstreamConnection(asyncio.Protocol):
    """One connection; it carries one request at a time."""

    def __init__(self, server: str, idle: deque[UpstreamConnection], flowing: FlowingSet) -> None:
        self._server, self._idle, self._flowing = server, idle, flowing
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: UpstreamAnswer | None = None
        self._flows = -1  # its file while an answer flows on it
        self.open = True

    async def send(self, data: bytes, sent: Callable[[UpstreamAnswer], None]) -> UpstreamAnswer:
        answer = self._answer = UpstreamAnswer(self)
        self._parser = httptools.HttpResponseParser(self)
        assert self._transport is not None
        self._transport.write(data)
        sent(answer)
        try:
            while not answer.headed:
                if answer.failure:
                    raise UpstreamFailure(answer.failure, begun=answer.abandoned)
                await answer.wait()
        except asyncio.CancelledError:
            self.close()  # so that the engine stops
            raise
        return answer

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._stop_flowing()
            self._transport.close()

    def read(self) -> None:
        """Read what has come of an answer that flows."""
        try:
            data = os.read(self._flows, _MOST_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._parse(data)
        else:
            self.close()
            self._fail(_BROKE_OFF)

    def _flow(self) -> None:
        """The first part of an answer has come: there is no hurry with the rest."""
        assert self._transport is not None
        self._transport.pause_reading()
        self._flows = self._transport.get_extra_info("socket").fileno()
        self._flowing.add(self._flows, self)

    def _stop_flowing(self) -> None:
        if self._flows >= 0:
            self._flowing.remove(self._flows)
            self._flows = -1

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._fail(f"not an HTTP answer: {problem}")
            self.close()
            return
        if self._flows < 0 and self.open and self._answer is not None and self._answer.begun:
            self._flow()

    def _fail(self, why: str) -> None:
        answer = self._answer
        if answer is not None and not answer.over:
            answer.failure = f"{self._server}: {why}"
            answer.wake()

    # -- called by the event loop -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is one by its methods only

    def data_received(self, data: bytes) -> None:
        self._parse(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_flowing()
        self.open = False
        self._fail(_BROKE_OFF)

    # -- called by the parser -----------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._answer is not None
        self._answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        assert self._answer is not None
        self._answer.status = self._parser.get_status_code()
        self._answer.headed = True
        self._answer.wake()

    def on_body(self, data: bytes) -> None:
        assert self._answer is not None
        self._answer.add(data)

    def on_message_complete(self) -> None:
        answer, self._answer = self._answer, None
        assert answer is not None and self._transport is not None
        answer.over = True
        answer.wake()
        if self.open and self._parser.should_keep_alive() and len(self._idle) < _MOST_IDLE:
            if self._flows >= 0:
                self._stop_flowing()
                self._transport.resume_reading()
            self._idle.append(self)
        else:
            self.close()
