"""HTTP to engines: their servers, and keep-alive connections to them."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from steelyard.errors import UserError
from steelyard.live.answers import UpstreamAnswer, UpstreamConnection, UpstreamFailure
from steelyard.live.flowing import FlowingSet

_CONNECT_SECONDS = 5.0


if sys.platform == "linux":
    _KEEP_ALIVE = {  # gone after 25 seconds without an answer; chosen
        socket.TCP_KEEPIDLE: 10,
        socket.TCP_KEEPINTVL: 5,
        socket.TCP_KEEPCNT: 3,
        socket.TCP_USER_TIMEOUT: 25_000,
    }


@dataclass
class Upstream:
    """One engine's server."""

    host: str
    port: int
    token: str = ""  # that it wants to see
    idle: deque[UpstreamConnection] = field(default_factory=deque)
    flowing: FlowingSet = field(default_factory=FlowingSet, compare=False)  # with further parts of answers

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

    def _connection(self) -> UpstreamConnection:
        return UpstreamConnection(str(self), self.idle, self.flowing)

    async def _connect(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                transport, connection = await loop.create_connection(
                    lambda: UpstreamConnection(str(self), self.idle, self.flowing), self.host, self.port
                )
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
