"""Engines as post-training stacks know them, answering without a model, and a stack's address in front of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from steelyard.emulate.servers import LocalServer, listen
from steelyard.live.adapters.stacks import stack_app
from steelyard.live.adapters.workers import WorkerFleet
from steelyard.live.rules import GatewayRules

_LOGPROBS = {"content": [{"token": "7", "logprob": -0.5}]}
_CHOICE = {"index": 0, "token_ids": [7], "finish_reason": "stop", "logprobs": _LOGPROBS}
_SGLANG = {
    "text": "seven",
    "meta_info": {
        "output_token_logprobs": [[-0.5, 7, None]],
        "finish_reason": {"type": "stop"},
        "completion_tokens": 1,
    },
}
ANSWERS: dict[tuple[str, str], Any] = {
    ("POST", "/generate"): _SGLANG,
    ("POST", "/inference/v1/generate"): {"choices": [_CHOICE], "prompt_logprobs": None},
    ("POST", "/skyrl/v1/generate"): {"choices": [{**_CHOICE, "routed_experts": [[[1]]]}]},
    ("POST", "/v1/chat/completions"): {"choices": [{"index": 0, "message": {"role": "assistant", "content": "seven"}}]},
    ("POST", "/v1/completions"): {"choices": [{"index": 0, "text": "seven"}]},
    ("POST", "/v1/chat/completions/render"): {"token_ids": [1, 2, 3]},
    ("POST", "/tokenize"): {"tokens": [1, 2, 3], "count": 3},
    ("POST", "/detokenize"): {"prompt": "seven"},
    ("GET", "/v1/models"): {"object": "list", "data": [{"id": "model"}]},
    ("GET", "/get_world_size"): {"world_size": 2},
    ("GET", "/liveness"): {"status": "ok"},
    ("POST", "/pause"): {"status": "paused"},
    ("POST", "/resume"): {"status": "resumed"},
}
_DONE = {"status": "ok"}


@dataclass
class PlainEngine:
    """Remembers what it was asked. ``fails`` has paths that it answers with a status of its own."""

    calls: list[tuple[str, str]] = field(default_factory=list)  # method, and path with its query
    bodies: list[bytes] = field(default_factory=list)
    fails: dict[str, int] = field(default_factory=dict)
    held: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""

    def __post_init__(self) -> None:
        self.held.set()

    def app(self) -> ASGIApp:
        return Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "POST"])])

    def asked(self, path: str) -> int:
        """How often a path was asked for."""
        return sum(target.split("?")[0] == path for _, target in self.calls)

    async def _answer(self, request: Request) -> Response:
        path, query = request.url.path, request.url.query
        if path == "/health":
            return Response()
        body = await request.body()
        self.calls.append((request.method, f"{path}?{query}" if query else path))
        self.bodies.append(body)
        await self.held.wait()
        if path in self.fails:
            return JSONResponse({"error": {"message": "told to fail"}}, self.fails[path])
        if b'"stream":true' in body:
            return StreamingResponse(
                iter([b'data: {"text": "se"}\n\n', b"data: [DONE]\n\n"]), media_type="text/event-stream"
            )
        return JSONResponse(ANSWERS.get((request.method, path), _DONE))


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something that is about to happen."""
    for _ in range(2000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen within 10 s")


@asynccontextmanager
async def all_running(apps: list[ASGIApp]) -> AsyncIterator[list[str]]:
    """The addresses of applications that are served on this machine."""
    listeners = [listen("127.0.0.1", 0) for _ in apps]
    servers = [LocalServer(uvicorn.Config(app, log_level="critical", loop="asyncio", lifespan="off")) for app in apps]
    pairs = zip(servers, listeners, strict=True)
    serving = [asyncio.ensure_future(server.serve(sockets=[listener])) for server, listener in pairs]
    try:
        await until(lambda: all(server.started for server in servers))
        yield [f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    finally:
        for server in servers:
            server.should_exit = server.force_exit = True
        await asyncio.gather(*serving)


@asynccontextmanager
async def running(app: ASGIApp) -> AsyncIterator[str]:
    """The address of one."""
    async with all_running([app]) as (url,):
        yield url


@asynccontextmanager
async def engines(count: int) -> AsyncIterator[list[PlainEngine]]:
    """Engines that run."""
    found = [PlainEngine() for _ in range(count)]
    async with all_running([each.app() for each in found]) as urls:
        for each, url in zip(found, urls, strict=True):
            each.url = url
        yield found


@asynccontextmanager
async def stack(
    name: str, addresses: list[str], router: str = "least-outstanding", rules: GatewayRules | None = None
) -> AsyncIterator[tuple[httpx.AsyncClient, WorkerFleet]]:
    """A client of a stack's address. Engines are not probed, so that tests decide which are up."""
    fleet = WorkerFleet(addresses, router)
    async with (
        running(stack_app(name, fleet, rules or GatewayRules())) as url,
        httpx.AsyncClient(base_url=url, timeout=20) as client,
    ):
        yield client, fleet
        for engine in fleet.engines:
            engine.close()
