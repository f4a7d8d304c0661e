"""What the applications of adapters share: how a request is checked and read, and how it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import orjson
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from steelyard.live.access import Access, Scope
from steelyard.live.requests import Refused

_BODY_SECONDS = 30.0  # for a client to send a body, as in the gateway
MOST_BYTES = 64 << 20
"""Of a body: images come in it, and a million token ids."""


class PathApp(Protocol):
    """An application for some paths."""

    def serves(self, method: str, path: str) -> bool:
        """Whether it knows a path."""
        ...

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        """Serve a request."""
        ...


class Beside:
    """Several applications at one address: the first that knows a path serves it, or the last one."""

    def __init__(self, apps: Sequence[PathApp], rest: ASGIApp) -> None:
        self._apps = apps
        self._rest = rest

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        method, path = connection["method"], connection["path"]
        for app in self._apps:
            if app.serves(method, path):
                await refusing(app, connection, receive, send)
                return
        await self._rest(connection, receive, send)


async def refusing(
    serve: Callable[[Connection, Receive, Send], Awaitable[None]], connection: Connection, receive: Receive, send: Send
) -> None:
    """Serve a request, and answer a refusal in OpenAI's form."""
    try:
        await serve(connection, receive, send)
    except Refused as refused:
        await answer(send, error(str(refused), refused.status), refused.status)


def headers_of(connection: Connection) -> dict[str, str]:
    """Headers by name, in small letters."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in connection["headers"]}


def check(access: Access, connection: Connection, scope: Scope) -> None:
    """Refuse who has no token of this scope."""
    allowed = access.allows(headers_of(connection).get("authorization", ""), scope)
    if allowed is None:
        raise Refused(401, "a bearer token is needed, in the header Authorization")
    if not allowed:
        raise Refused(403, f"this token has not the scope {scope}")


async def body_of(receive: Receive, most: int = MOST_BYTES) -> bytes:
    """The whole body of a request."""
    found: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            while more:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "the client left")
                found.append(message.get("body", b""))
                size += len(found[-1])
                if size > most:
                    raise Refused(413, f"a body of more than {most:,} bytes")
                more = message.get("more_body", False)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {_BODY_SECONDS:g} s") from None
    return b"".join(found)


def json_of(body: bytes, where: str = "body", status: int = 400) -> dict[str, Any]:
    """The object that a body holds; an empty body is an empty one. What holds none is refused with this status."""
    try:
        found = orjson.loads(body or b"{}")
    except orjson.JSONDecodeError:
        raise Refused(status, f"{where}: not valid JSON") from None
    if not isinstance(found, dict):
        raise Refused(status, f"{where}: must be a JSON object")
    return found


def error(message: str, status: int) -> dict[str, Any]:
    """A refusal as OpenAI's interface has it."""
    return {"error": {"message": message, "type": "GatewayError", "param": None, "code": status}}


async def answer(send: Send, content: object, status: int = 200) -> None:
    """Answer with JSON."""
    response = Response(orjson.dumps(content), status, media_type="application/json")
    await response({"type": "http"}, _nothing, send)


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
