"""Who may ask the server: a browser of this machine that was given the token, from the server's own pages.

The token comes once in the address, and then in a cookie that scripts cannot read and that no other site's pages send.
`Host` is checked against names that point here by attack, `Origin` against other sites' pages.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

MOST_BODY = 2 << 20  # bytes of a request: a scenario of a megabyte, every character of it escaped once; chosen
_SAFE = ("GET", "HEAD")
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}
_ASK = "Open the address that `steelyard ui` has printed. It has a token, without which this page shows nothing.\n"
# Not a redirection: where a link of another program led here, a browser would not send the cookie along with that.
_ENTER = '<!doctype html><html lang="en"><title>Steelyard</title><meta http-equiv="refresh" content="0; url=/"></html>'


class Guard:
    """Lets through what comes from a page of this server, with its token, and adds headers to all answers."""

    def __init__(self, app: ASGIApp, token: str, port: int, ticket: str = "") -> None:
        """``ticket`` is a token for one use: what a browser is started with, other users of the machine can see."""
        self._app, self._token, self._ticket = app, token, ticket
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self._cookie = f"steelyard-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(send, *refusal)
        elif self._brings_token(scope):
            cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Strict"
            await _answer(send, 200, _ENTER, {"set-cookie": cookie, "content-type": "text/html; charset=utf-8"})
        elif not self._has_cookie(headers):
            await _answer(send, 403, _ASK)
        else:
            await self._app(scope, _Bounded(receive), _with_headers(send))

    def _refusal(self, scope: Scope, headers: Mapping[str, str]) -> tuple[int, str] | None:
        """Why a request is refused whatever token it has: status and reason."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self._hosts:
            return 421, "This server answers only under its own address.\n"
        if origin is not None and origin not in {f"http://{each}" for each in self._hosts}:
            return 403, "This request comes from another site's page.\n"
        if scope["method"] not in _SAFE and origin is None:
            return 403, "A change needs to come from a page of this server.\n"
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > MOST_BODY:
            return 413, f"A request of more than {MOST_BODY:,} bytes is not taken.\n"
        return None

    def _brings_token(self, scope: Scope) -> bool:
        if scope["path"] != "/" or scope["method"] != "GET":
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self._ticket and hmac.compare_digest(given.encode(), self._ticket.encode()):
            self._ticket = ""
            return True
        return self._is_token(given)

    def _has_cookie(self, headers: Mapping[str, str]) -> bool:
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return found is not None and self._is_token(found.value)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


class TooLarge(Exception):
    """A request's body is larger than it may be."""


class _Bounded:
    """Receives a body and stops at the bound, whatever length it was said to have."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._read = receive, 0

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        self._read += len(message.get("body", b""))
        if self._read > MOST_BODY:
            raise TooLarge
        return message


def _with_headers(send: Send) -> Send:
    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            more = [(name.encode(), value.encode()) for name, value in _HEADERS.items() if name.encode() not in given]
            message = {**message, "headers": [*message["headers"], *more]}
        await send(message)

    return sent


async def _answer(send: Send, status: int, text: str, more: Mapping[str, str] | None = None) -> None:
    body = text.encode()
    headers = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), **(more or {})}
    listed = [(name.encode(), value.encode()) for name, value in headers.items()]
    await _with_headers(send)({"type": "http.response.start", "status": status, "headers": listed})
    await send({"type": "http.response.body", "body": body})
