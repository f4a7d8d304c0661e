"""Connections of clients: how many there may be, and what each may take of the gateway's time and memory."""

from __future__ import annotations

import asyncio
import resource
from functools import partial
from pathlib import Path
from typing import Any, cast

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from steelyard.live.requests import error_body
from steelyard.live.rules import GatewayRules

_MOST_HEAD = 64 << 10  # bytes of a request's head; chosen
_OWN_FILES = 64  # that a process has open beside its connections; chosen


class _Room:
    """Connections of a server that wait for a head, the oldest first. If there are too many, the oldest is closed."""

    def __init__(self, rules: GatewayRules) -> None:
        self.rules = rules
        self.idle: dict[ClientConnection, None] = {}
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.most = min(rules.patience.connections, (files - _OWN_FILES) // 2)  # each may need one to an engine

    def make(self) -> bool:
        """Close the oldest idle connection. Returns whether there was one."""
        for oldest in self.idle:
            oldest.close_idle()
            return True
        return False


class ClientConnection(HttpToolsProtocol):
    """A client's connection, as uvicorn has it, and bounded: in the time that a head takes, in what is read and not
    wanted, and in what was written and is not read."""

    def __init__(self, room: _Room, **uvicorns: Any) -> None:
        super().__init__(**uvicorns)
        self._room, self._patience = room, room.rules.patience
        self._in_head = True
        self._received = 0  # bytes of this request
        self._late: asyncio.TimerHandle | None = None  # while a head is awaited, or the rest of an unwanted body
        self._stalled: asyncio.TimerHandle | None = None  # while nothing more can be written

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # so that a client that does not read is noticed at once
        if len(self.connections) > self._room.most and not self._room.make():
            self._refuse(503, "too many connections")
            return
        self._room.idle[self] = None
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.idle.pop(self, None)
        _cancel(self._late)
        _cancel(self._stalled)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._received += len(data)
        if self._late is None and self._in_head:
            self._expect()
        super().data_received(data)
        if self._in_head and self._received > _MOST_HEAD:
            self._refuse(431, "the head is too long")
        elif self._received > _MOST_HEAD + 2 * self._room.rules.most_bytes:  # chunks and trailers without end
            self.transport.abort()

    def on_headers_complete(self) -> None:
        if not self.url.startswith(b"/") or self.parser.get_http_version() not in ("1.0", "1.1"):
            raise httptools.HttpParserInvalidURLError("not a path")  # we are nobody's proxy
        self._in_head = False
        self._expected()
        self._room.idle.pop(self, None)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head, self._received = True, 0
        super().on_message_complete()
        if self.cycle.response_complete:  # it was answered before its body had come
            self._expected()
            keep, end = self.timeout_keep_alive, self.timeout_keep_alive_handler
            self.timeout_keep_alive_task = self.loop.call_later(keep, end)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing() or not self.cycle.response_complete:
            return  # or the next request is here already
        self._room.idle[self] = None
        if not self._in_head:
            self._expect()

    def timeout_keep_alive_handler(self) -> None:
        self.close_idle()

    def close_idle(self) -> None:
        """Close it, whether or not its client reads what was written."""
        self._room.idle.pop(self, None)
        self.transport.close()
        self.loop.call_later(self._patience.stall_seconds, self.transport.abort)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self._patience.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stalled)

    def _expect(self) -> None:
        """Something has to come within the time that a head may take."""
        self._late = self.loop.call_later(self._patience.head_seconds, self._is_late)

    def _expected(self) -> None:
        _cancel(self._late)
        self._late = None

    def _is_late(self) -> None:
        self._late = None
        if self.cycle is None or self.cycle.response_complete:
            self._refuse(408, "the request did not come in time")
        else:  # half a head has come while the request before it is answered
            self._expect()

    def _refuse(self, status: int, why: str) -> None:
        """Close it, with an answer if half a head has come."""
        if self._in_head and (self._received or status == 503):
            body = error_body(why, status)
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + head + body)
        self.close_idle()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def server_config(app: ASGIApp, rules: GatewayRules, certificate: tuple[Path, Path] | None = None) -> uvicorn.Config:
    """How a gateway is served, or an application around one; ``certificate`` are the files of a certificate and its
    key."""
    room = _Room(rules)
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        loop="asyncio",
        http=cast(type[ClientConnection], partial(ClientConnection, room)),
        ws="none",
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        ssl_certfile=None if certificate is None else str(certificate[0]),
        ssl_keyfile=None if certificate is None else str(certificate[1]),
    )
