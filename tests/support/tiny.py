"""The small engine for tests, served over real connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from steelyard.live.tiny.engine import TinyEngine
from steelyard.live.tiny.serve import serve_tiny


@asynccontextmanager
async def tiny_served(folder: Path, most: int = 64) -> AsyncIterator[tuple[httpx.AsyncClient, TinyEngine]]:
    """A client of a model's engine."""
    engine = TinyEngine(folder, "tiny", most=most)
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server = asyncio.ensure_future(serve_tiny(engine, "127.0.0.1", 0, port.set_result))
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{await port}", timeout=60) as client:
            yield client, engine
    finally:
        server.cancel()
        await asyncio.wait({server})


async def complete(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """The one choice of a completion, with its tokens and log-probabilities."""
    asked = {"prompt": "1+2=", "return_token_ids": True, "logprobs": 0, **body}
    answer = await client.post("/v1/completions", json=asked)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    found: dict[str, Any] = choice
    return found


async def chunks(client: httpx.AsyncClient, **body: Any) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream."""
    asked = {"prompt": "1+2=", "return_token_ids": True, "stream": True, **body}
    async with client.stream("POST", "/v1/completions", json=asked) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                return
            if line:
                yield json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream broke off")
