"""HTTP to one engine: keep-alive connections, a time limit on every call, and answers of a known shape."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from steelyard.errors import UserError
from steelyard.live.engines.api import EngineError
from steelyard.quoting import printable, shortened

_Shape = TypeVar("_Shape", bound=BaseModel)

_MOST_BYTES = 64 << 20  # of an answer; log-probs of 128k tokens are about a sixth of it
_MOST_CONNECTIONS = 8  # calls under way at once; chosen
_IDLE_SECONDS = 4.0  # uvicorn closes idle connections after 5, which must not meet a call


@dataclass(frozen=True)
class CallLimits:
    """Seconds that calls may take. All are chosen."""

    look: float = 5.0  # health and load; SGLang's health check alone sleeps a second
    order: float = 30.0  # pause, resume, abort, reset
    drain: float = 600.0  # a pause that waits for requests to finish
    weights: float = 600.0  # updates, sleep and wake
    score: float = 300.0  # log-probs of one sequence, which waits for prompts of other requests


class Call(NamedTuple):
    """A request to an engine, and the seconds it may take."""

    method: str
    path: str
    seconds: float
    query: Mapping[str, str] | None = None
    body: Mapping[str, object] | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Reply(NamedTuple):
    """A status and a body."""

    status: int
    body: bytes


def engine_address(url: str) -> str:
    """The URL of an engine without a path. `/v1`, which clients of OpenAI's interface use, is removed."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:  # half an IPv6 address, a port that is no number
        host = None
    if not host or parts.scheme not in ("http", "https") or parts.path not in ("", "/", "/v1", "/v1/"):
        raise UserError(f"{url}: must be the URL of an engine, such as http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}"


class EngineHttp:
    """Calls to one engine. ``key`` is sent as a bearer token if there is one."""

    def __init__(self, url: str, key: str = "", limits: CallLimits | None = None) -> None:
        self.url = engine_address(url)
        self.limits = limits or CallLimits()
        self._client = httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=None,  # `asyncio.timeout` bounds the whole call, which httpx does not
            limits=httpx.Limits(max_connections=_MOST_CONNECTIONS, keepalive_expiry=_IDLE_SECONDS),
            trust_env=False,  # no proxy stands between an agent and its engine
        )

    async def ask(self, call: Call) -> Reply:
        """An answer of any status."""
        try:
            async with (
                asyncio.timeout(call.seconds),
                self._client.stream(call.method, call.path, params=call.query, json=call.body) as answer,
            ):
                return Reply(answer.status_code, await self._whole(answer, call))
        except TimeoutError:
            raise self.failure(call, f"no answer within {call.seconds:g} s") from None
        except httpx.HTTPError as problem:
            raise self.failure(call, str(problem) or type(problem).__name__) from None

    async def done(self, call: Call) -> Reply:
        """An answer with status 200."""
        reply = await self.ask(call)
        if reply.status != 200:
            raise self.refusal(call, reply)
        return reply

    async def read(self, shape: type[_Shape], call: Call) -> _Shape:
        """The content of an answer with status 200."""
        return self.parsed(shape, call, await self.done(call))

    async def answers(self, path: str) -> bool:
        """Whether a GET is answered with status 200. Never raises."""
        try:
            return (await self.ask(Call("GET", path, self.limits.look))).status == 200
        except EngineError:
            return False

    def parsed(self, shape: type[_Shape], call: Call, reply: Reply) -> _Shape:
        """The content of a reply."""
        try:
            return shape.model_validate_json(reply.body)
        except ValidationError as problem:
            first = problem.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise self.failure(call, f"answered what is not understood: {where or 'all'}: {first['msg']}") from None

    def refusal(self, call: Call, reply: Reply) -> EngineError:
        """The error of a status other than 200."""
        said = " ".join(reply.body[:2000].decode(errors="replace").split())
        return self.failure(call, f"HTTP {reply.status}: {said or 'no reason given'}")

    def failure(self, call: Call | str, why: str) -> EngineError:
        """An error. What an engine said is shortened and made printable."""
        return EngineError(self.url, str(call), shortened(printable(why)))

    async def close(self) -> None:
        await self._client.aclose()

    async def _whole(self, answer: httpx.Response, call: Call) -> bytes:
        parts, size = [], 0
        async for part in answer.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > _MOST_BYTES:
                raise self.failure(call, f"an answer of more than {_MOST_BYTES:,} bytes")
        return b"".join(parts)
