"""A server that accepts exactly the calls of a contract (tests/live/engines/contracts), and can be told to go wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from steelyard.emulate.servers import LocalServer, listen
from support.paths import ROOT

CONTRACTS = ROOT / "tests" / "live" / "engines" / "contracts"
METHODS = ["GET", "POST", "PUT", "DELETE"]
_TYPES: dict[str | None, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    None: type(None),
}
Behaviour = Callable[[Any], Awaitable[Response]]
"""What a path does instead of giving the contract's answer, from the body of the request."""


@dataclass
class FakeEngine:
    """An engine that answers as its contract says."""

    kind: str
    calls: list[tuple[str, str]] = field(default_factory=list)  # method and path
    bodies: dict[str, Any] = field(default_factory=dict)  # the last of each path
    queries: dict[str, dict[str, str]] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)  # of the last request
    instead: dict[str, Behaviour] = field(default_factory=dict)  # by path, or * for all
    missing: set[str] = field(default_factory=set)  # paths that this version does not have
    broken: list[str] = field(default_factory=list)  # what broke the contract

    def __post_init__(self) -> None:
        text = (CONTRACTS / f"{self.kind}.json").read_text(encoding="utf-8")
        self.contract = {(call["method"], call["path"]): call for call in json.loads(text)["calls"]}

    def app(self) -> ASGIApp:
        return Starlette(routes=[Route("/{path:path}", self._answer, methods=METHODS)])

    async def _answer(self, request: Request) -> Response:
        path, raw = request.url.path, await request.body()
        self.calls.append((request.method, path))
        self.headers = dict(request.headers)
        call = self.contract.get((request.method, path))
        if call is None or path in self.missing:
            if call is None:
                self.broken.append(f"{request.method} {path} is not in the contract")
            return JSONResponse({"detail": "Not Found"}, 404)
        query, body = dict(request.query_params), json.loads(raw) if raw else None
        self.bodies[path], self.queries[path] = body, query
        wrong = [*_wrong(call.get("query", {}), query, "query"), *_wrong(call.get("body"), body, "body")]
        if wrong:
            self.broken += [f"{request.method} {path}: {each}" for each in wrong]
            return JSONResponse({"detail": wrong}, 422)
        behaviour = self.instead.get(path) or self.instead.get("*")
        if behaviour is not None:
            return await behaviour(body)
        if "text" in call:
            return Response(call["text"], call["status"], media_type="text/plain")
        return Response(status_code=call["status"]) if call["answer"] is None else JSONResponse(call["answer"])


def _wrong(wanted: Any, found: Any, where: str) -> list[str]:
    """How a value differs from what a contract wants of it."""
    if isinstance(wanted, dict):
        if not isinstance(found, dict):
            return [f"{where} is not an object"]
        known = {key.removesuffix("?"): value for key, value in wanted.items()}
        wrong = [f"{where} has {key}" for key in found.keys() - known.keys()]
        wrong += [f"{where} lacks {key}" for key in wanted if not key.endswith("?") and key not in found]
        return wrong + [each for key in found.keys() & known.keys() for each in _wrong(known[key], found[key], key)]
    if isinstance(wanted, list):
        if not isinstance(found, list):
            return [f"{where} is not a list"]
        return [each for value in found for each in _wrong(wanted[0], value, where)]
    if wanted in _TYPES:
        right = isinstance(found, _TYPES[wanted]) and isinstance(found, bool) == (wanted == "boolean")
        return [] if right else [f"{where} is not {wanted}"]
    return [] if found in wanted.split("|") else [f"{where} is not one of {wanted}"]


async def hang(_: Any) -> Response:
    """Never answer."""
    await asyncio.sleep(3600)
    return Response()


def always(status: int, content: bytes | str) -> Behaviour:
    """Always the same answer."""

    async def behave(_: Any) -> Response:
        return Response(content, status, media_type="application/json")

    return behave


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[str]:
    """The URL of a server of an application, on a port of its own."""
    listener = listen("127.0.0.1", 0)
    server = LocalServer(uvicorn.Config(app, log_level="error", access_log=False, loop="asyncio", lifespan="off"))
    running = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        await running


@asynccontextmanager
async def faked(kind: str) -> AsyncIterator[tuple[str, FakeEngine]]:
    """A fake engine and its URL. Nothing may break the contract."""
    engine = FakeEngine(kind)
    async with serving(engine.app()) as url:
        yield url, engine
    assert not engine.broken, engine.broken
