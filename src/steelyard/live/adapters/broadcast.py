"""Paths that concern all engines, for a stack that knows one address only: pauses, weights, caches.

An operation is done on all engines or on none, as far as it can be taken back. If an engine is down or fails, the
caller is told so: engines with different weights are worse than a training step that fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as Connection

from steelyard.live.access import Access, Scope
from steelyard.live.adapters.calls import answer, body_of, check, error
from steelyard.live.requests import Refused
from steelyard.live.upstream import Upstream, UpstreamFailure

_PATIENCE_SECONDS = 900.0  # for engines to answer; prime-rl waits up to 720 s for a weight update
_UNDO_SECONDS = 30.0  # chosen; who waits for it has waited before


class EngineList(Protocol):
    """What is needed of a fleet."""

    engines: list[Upstream]
    up: list[bool]


class EngineAnswer(NamedTuple):
    """What an engine said; a status of 0 means that it could not be asked."""

    engine: Upstream
    status: int
    body: bytes
    kind: str = "application/json"

    @property
    def done(self) -> bool:
        return 200 <= self.status < 300


def first_body(answers: Sequence[EngineAnswer]) -> bytes:
    """All engines say the same, so one of them speaks for all."""
    return answers[0].body


async def same_body(body: bytes, engines: Sequence[Upstream]) -> list[bytes]:
    """Every engine gets what was sent."""
    return [body] * len(engines)


@dataclass(frozen=True)
class Operation:
    """How one path is broadcast."""

    method: str = "POST"
    undo: str = ""  # a path that takes it back, for when it fails on some engine
    every: bool = True  # whether it is refused while an engine is down
    bodies: Callable[[bytes, Sequence[Upstream]], Awaitable[list[bytes]]] = same_body
    merge: Callable[[Sequence[EngineAnswer]], bytes] = first_body


class Broadcast:
    """Does operations on all engines. ``scope`` is what its callers need."""

    def __init__(
        self,
        fleet: EngineList,
        access: Access,
        operations: Mapping[str, Operation],
        patience: float = _PATIENCE_SECONDS,
        scope: Scope = "operator",
    ) -> None:
        self._scope = scope
        self._fleet = fleet
        self._access = access
        self._operations = operations
        self._patience = patience

    def serves(self, method: str, path: str) -> bool:
        return path in self._operations and method == self._operations[path].method

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        check(self._access, connection, self._scope)
        path: str = connection["path"]
        operation = self._operations[path]
        body = await body_of(receive)
        engines = self._engines(operation)
        query: str = connection["query_string"].decode("latin-1")
        bodies = await operation.bodies(body, engines)
        target = f"{path}?{query}" if query else path
        pairs = zip(engines, bodies, strict=True)
        answers = await asyncio.gather(
            *(ask(each, operation.method, target, own, self._patience) for each, own in pairs)
        )
        failed = [each for each in answers if not each.done]
        if failed:
            await self._take_back(operation, engines)
            status = _status(failed)
            await answer(send, error("; ".join(_told(each) for each in failed), status), status)
            return
        response = Response(operation.merge(answers), answers[0].status, media_type=answers[0].kind)
        await response(connection, receive, send)

    def _engines(self, operation: Operation) -> list[Upstream]:
        engines = [engine for engine, up in zip(self._fleet.engines, self._fleet.up, strict=True) if up]
        down = [str(engine) for engine, up in zip(self._fleet.engines, self._fleet.up, strict=True) if not up]
        if not engines or (down and operation.every):
            raise Refused(503, f"these engines are down: {', '.join(down)}" if down else "there are no engines")
        return engines

    async def _take_back(self, operation: Operation, engines: Sequence[Upstream]) -> None:
        """On all of them: one that did not answer may have done it."""
        if operation.undo:
            patience = min(self._patience, _UNDO_SECONDS)
            await asyncio.gather(*(ask(each, "POST", operation.undo, b"", patience) for each in engines))


async def ask(engine: Upstream, method: str, target: str, body: bytes, patience: float) -> EngineAnswer:
    """Ask one engine. What goes wrong is part of the answer."""
    headers = {"content-type": "application/json"} if body else {}
    try:
        async with asyncio.timeout(patience):
            said = await engine.ask(method, target, headers, body)
            kind = said.headers.get("content-type", "application/json")
            return EngineAnswer(engine, said.status, await said.whole(), kind)
    except UpstreamFailure as failure:
        return EngineAnswer(engine, 0, str(failure).encode())
    except TimeoutError:
        return EngineAnswer(engine, 0, f"no answer within {patience:g} s".encode())


def _status(failed: Sequence[EngineAnswer]) -> int:
    """What all engines that failed say, if they agree."""
    statuses = {each.status for each in failed}
    return statuses.pop() if len(statuses) == 1 and 0 not in statuses else 502


def _told(said: EngineAnswer) -> str:
    text = said.body[:300].decode(errors="replace")
    return f"{said.engine}: {said.status or 'not reached'}: {text}"
