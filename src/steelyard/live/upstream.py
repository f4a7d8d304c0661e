"""HTTP to engines: keep-alive connections, and answers passed on as they come.

A library would do, but takes as long for a token as an engine's step: a token here costs one callback.

Engines send the tokens of a step all at once. A part that a request waits for first is read and passed on at once.
Further ones are put aside, and read a few at a time: requests and first tokens that come meanwhile go before them.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from steelyard.errors import UserError

_CONNECT_SECONDS = 5.0
_MOST_IDLE = 1024  # connections kept open to one engine
_AT_ONCE = 2  # connections whose further parts are read before the event loop looks for others; chosen


if sys.platform == "linux":
    _KEEP_ALIVE = {  # gone after 25 seconds without an answer; chosen
        socket.TCP_KEEPIDLE: 10,
        socket.TCP_KEEPINTVL: 5,
        socket.TCP_KEEPCNT: 3,
        socket.TCP_USER_TIMEOUT: 25_000,
    }


class UpstreamFailure(Exception):
    """An engine cannot be reached, or broke off. ``begun``: any part of its answer had come, or nobody wants it."""

    def __init__(self, why: str, begun: bool = False) -> None:
        super().__init__(why)
        self.begun = begun


@dataclass
class Upstream:
    """One engine's server."""

    host: str
    port: int
    token: str = ""  # that it wants to see
    idle: deque[_Connection] = field(default_factory=deque)
    unread: deque[_Connection] = field(default_factory=deque)  # with further parts of answers

    @classmethod
    def of(cls, url: str, token: str = "") -> Upstream:
        """The server at a URL such as http://127.0.0.1:8000."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # half an IPv6 address, a port that is no number
            host = port = None
        if not host or port is None or parts.scheme != "http" or parts.path not in ("", "/", "/v1"):
            raise UserError(f"{url}: must be the URL of an engine, such as http://127.0.0.1:8000")
        return cls(host, port, token)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    async def ask(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes = b"",
        sent: Callable[[UpstreamAnswer], None] = lambda _: None,
    ) -> UpstreamAnswer:
        """Send a request. Returns when the head of the answer is there. ``sent`` is called before, with the answer that
        is to come, which may be abandoned."""
        lines = [f"{method} {target} HTTP/1.1", f"host: {self}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"authorization: Bearer {self.token}"] if self.token else []
        data = "\r\n".join([*lines, "", ""]).encode("latin-1") + body
        while self.idle:
            connection = self.idle.pop()
            if connection.open:
                try:
                    return await connection.send(data, sent)
                except UpstreamFailure as failure:
                    if failure.begun:
                        raise
                    # the engine closed it while it was idle: try another
        return await (await self._connect()).send(data, sent)

    def close(self) -> None:
        """Close idle connections."""
        while self.idle:
            self.idle.pop().close()

    def read_later(self, connection: _Connection) -> None:
        """Read what has come on a connection after what is more urgent."""
        if not self.unread:
            asyncio.get_running_loop().call_soon(self._read_some)
        self.unread.append(connection)

    def _read_some(self) -> None:
        some = [self.unread.popleft() for _ in range(min(_AT_ONCE, len(self.unread)))]
        if self.unread:
            asyncio.get_running_loop().call_soon(self._read_some)
        for connection in some:
            connection.read()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                transport, connection = await loop.create_connection(lambda: _Connection(self), self.host, self.port)
        except (OSError, TimeoutError) as problem:
            raise UpstreamFailure(f"{self}: {str(problem) or 'no connection in time'}") from None
        if is_own(transport):
            connection.close()
            raise UpstreamFailure(f"{self}: nobody listens there")
        notice_loss(transport)
        return connection


def notice_loss(transport: asyncio.BaseTransport) -> None:
    """Have the system break a connection off when the machine at its other end is gone. Otherwise it would wait for a
    quarter of an hour with data under way, and for ever without."""
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for option, value in _KEEP_ALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


def is_own(transport: asyncio.BaseTransport) -> bool:
    """Whether a connection leads to itself. Where nobody listens at a port of this machine, the system may give that
    very port to the one who asks for it."""
    own: object = transport.get_extra_info("sockname")
    return own is not None and own == transport.get_extra_info("peername")


class UpstreamAnswer:
    """An answer as it comes. `take` gives its next part, and None at its end."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection
        self._parts: list[bytes] = []
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
        self._parts.append(data)
        self.begun = True
        self.wake()

    async def wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Connection(asyncio.Protocol):
    """One connection; it carries one request at a time."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: UpstreamAnswer | None = None
        self._unread: list[bytes] = []
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
            self._transport.close()

    # -- called by the event loop -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop is one by its methods only

    def data_received(self, data: bytes) -> None:
        if self._unread:
            self._unread.append(data)
        elif self._answer is not None and self._answer.begun:
            self._unread.append(data)
            self._upstream.read_later(self)
        else:
            self._parse(data)

    def read(self) -> None:
        """Read what was put aside."""
        if self._unread:
            data, self._unread = b"".join(self._unread), []
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._fail(f"{self._upstream}: not an HTTP answer: {problem}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.read()
        self.open = False
        self._fail(f"{self._upstream}: the connection broke off")

    def _fail(self, why: str) -> None:
        answer = self._answer
        if answer is not None and not answer.over:
            answer.failure = why
            answer.wake()

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
        assert answer is not None
        answer.over = True
        answer.wake()
        if self.open and self._parser.should_keep_alive() and len(self._upstream.idle) < _MOST_IDLE:
            self._upstream.idle.append(self)
        else:
            self.close()
