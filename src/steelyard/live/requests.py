"""Requests of clients as the gateway reads them, and its answers to them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Sequence
from typing import Any

import orjson
from starlette.types import Message, Receive, Send
from starlette.types import Scope as Connection

from steelyard.live.rules import IDENTIFIER, GatewayRules

Headers = dict[str, str]
JSON = b"application/json"
_IDENTIFIER = re.compile(IDENTIFIER)
_DEEPEST = 254  # levels of JSON, which is what orjson writes


class Refused(Exception):
    """An answer that is not an engine's."""

    def __init__(self, status: int, message: str, *headers: tuple[bytes, bytes]) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers


def headers_of(connection: Connection) -> Headers:
    """Headers of a request, by names in small letters."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in connection["headers"]}


def check_method(method: str, wanted: str) -> None:
    """Refuse a request of another method."""
    if method != wanted:
        raise Refused(405, f"use {wanted}", (b"allow", wanted.encode()))


def parsed_body(body: bytes, needed: str) -> dict[str, Any]:
    """The body of a request for tokens. Engines check it; here is checked what is used here."""
    try:
        parsed = orjson.loads(body)
        if body.count(b"[") + body.count(b"{") > _DEEPEST:
            orjson.dumps(parsed)  # fails at more levels
    except ValueError:
        raise Refused(400, "the body is not valid JSON") from None
    except TypeError:
        raise Refused(400, f"the body has more than {_DEEPEST} levels") from None
    if not isinstance(parsed, dict):
        raise Refused(400, "the body must be a JSON object")
    if parsed.get(needed) is None:
        raise Refused(400, f"{needed}: is missing")
    messages = parsed.get("messages", [])
    if not isinstance(messages, list) or not all(_is_message(each) for each in messages):
        raise Refused(400, "messages: must be a list of objects with a role")
    if "kv_transfer_params" in parsed:  # would have an engine fetch from wherever a client says
        raise Refused(400, "kv_transfer_params: not for clients")
    return parsed


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


def either(headers: Headers, name: str, body: dict[str, Any], key: str) -> object:
    """What a header says, or a key of the body."""
    return headers[name] if name in headers else body.get(key)


def identifier(value: object, name: str) -> str | None:
    """A name that a client has given, checked."""
    if value is None:
        return None
    if not isinstance(value, str) or _IDENTIFIER.fullmatch(value) is None:
        raise Refused(400, f"{name}: must be up to 200 letters, digits and . _ : / + = @ -")
    return value


async def send_answer(
    send: Send, status: int, body: bytes, kind: bytes = JSON, more: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send a whole answer."""
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def error_body(message: str, status: int) -> bytes:
    """An error as OpenAI's interface has it."""
    return json.dumps({"error": {"message": message, "type": "GatewayError", "param": None, "code": status}}).encode()


async def whole_body(rules: GatewayRules, headers: Headers, receive: Receive) -> bytes:
    """The body of a request, if it comes in time and is not too long."""
    most = rules.most_bytes
    told = headers.get("content-length", "0")
    if not told.isascii() or not told.isdigit() or int(told[:20]) > most:
        raise Refused(413, f"a body of more than {most:,} bytes")
    found: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(rules.patience.body_seconds):
            more = True
            while more:
                message: Message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "the client left")
                part = message.get("body", b"")
                size += len(part)
                if size > most:
                    raise Refused(413, f"a body of more than {most:,} bytes")
                found.append(part)
                more = message.get("more_body", False)
    except TimeoutError:
        raise Refused(408, f"the body did not come within {rules.patience.body_seconds:g} s") from None
    return b"".join(found)


async def while_there(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Do something for a client, unless it leaves first. Returns whether it was done."""
    watch, working = asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(work)
    try:
        await asyncio.wait({watch, working}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        watch.cancel()
        working.cancel()
        working.add_done_callback(_look)  # nobody else does, if its client has left


def _look(task: asyncio.Future[None]) -> None:
    if not task.cancelled():
        task.exception()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
