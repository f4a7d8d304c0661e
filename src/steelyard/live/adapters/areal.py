"""AReaL: a routing strategy for the router of its inference service, and that router with this strategy.

AReaL 1.0.4 asks ``pick`` which data proxy takes a new group of sessions, and does not say what became of it. So the
router's own calls are listened to: ``/register_session`` begins a group, ``/remove_session`` ends it, ``/unregister``
ends all groups of a proxy. As released, the first choice for the admin key is kept for all later sessions, and no
strategy is asked again; here each group of sessions is chosen for.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from itertools import count
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar

from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as Connection

from steelyard.errors import UserError, did_you_mean
from steelyard.live.adapters.calls import body_of, json_of, refusing
from steelyard.live.adapters.shared import SessionRouter

LOADS = ("round-robin", "least-outstanding", "power-of-two")
"""Routers for AReaL, which tells neither sessions nor prompts."""
MODULE = "areal.experimental.inference_service.router"
_OWN_MODULE = "steelyard.live.adapters.areal"
_START = "/rl/start_session"
_ADMIN_SESSION = "__hitl__"  # the session that AReaL's router keeps for its admin key
_PICK_SECONDS = 120.0  # chosen: a pick that no session has followed by then has failed
_MOST_BYTES = 4 << 20  # of a call to the router


class DataProxy(Protocol):
    """What is read of AReaL's ``WorkerInfo``."""

    worker_addr: str


Proxy = TypeVar("Proxy", bound=DataProxy)


class _Pick(NamedTuple):
    at: float
    name: str
    server: str


class SteelyardStrategy:
    """AReaL's ``RoutingStrategy``. A seat is taken by ``pick`` and freed when the group of sessions is over."""

    def __init__(
        self, router: str = "least-outstanding", seed: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if router not in LOADS:
            raise UserError(f"routing strategy: {router!r} is not one of them; {did_you_mean(router, LOADS)}")
        self._router = SessionRouter(router, seed)
        self._clock = clock
        self._lock = Lock()
        self._numbers = count()
        self._picks: deque[_Pick] = deque()  # without sessions so far, oldest first
        self._groups: dict[str, _Pick] = {}

    def pick(self, workers: list[Proxy]) -> Proxy | None:
        """The data proxy for a new group of sessions."""
        if not workers:
            return None
        by_address = {each.worker_addr: each for each in workers}
        with self._lock:
            now = self._clock()
            while self._picks and now - self._picks[0].at > _PICK_SECONDS:
                self._free(self._picks.popleft())
            self._router.add(by_address)
            name = f"pick-{next(self._numbers)}"
            server = self._router.acquire(name, among=by_address)
            self._picks.append(_Pick(now, name, server))
        return by_address[server]

    def begun(self, group: str, worker: str) -> None:
        """A group of sessions has begun on a data proxy."""
        with self._lock:
            found = next((each for each in self._picks if each.server == worker), None)
            if found is not None and group not in self._groups:
                self._picks.remove(found)
                self._groups[group] = found

    def ended(self, group: str) -> None:
        """A group of sessions is over. One that is not known changes nothing."""
        with self._lock:
            found = self._groups.pop(group, None)
            if found is not None:
                self._free(found)

    def gone(self, worker: str) -> None:
        """A data proxy has left, with its sessions."""
        with self._lock:
            self._router.remove([worker])
            self._picks = deque(each for each in self._picks if each.server != worker)
            self._groups = {group: each for group, each in self._groups.items() if each.server != worker}

    def loads(self) -> dict[str, int]:
        """Groups of sessions by data proxy."""
        return self._router.loads()

    def _free(self, pick: _Pick) -> None:
        self._router.release(pick.server, pick.name)
        self._router.end(pick.name)


class RouterState(Protocol):
    """What is used of the state that AReaL's router application shows."""

    session_registry: Any
    worker_registry: Any


class ListeningRouter:
    """AReaL's router application. Tells the strategy what becomes of its choices."""

    def __init__(self, app: ASGIApp, state: RouterState, strategy: SteelyardStrategy, admin_key: str) -> None:
        self._app = app
        self._state = state
        self._strategy = strategy
        self._admin_key = admin_key
        self._choosing = asyncio.Lock()

    async def __call__(self, connection: Connection, receive: Receive, send: Send) -> None:
        if connection["type"] != "http" or connection["method"] != "POST":
            await self._app(connection, receive, send)
        else:
            await refusing(self._listen, connection, receive, send)

    async def _listen(self, connection: Connection, receive: Receive, send: Send) -> None:
        path: str = connection["path"]
        body = await body_of(receive, _MOST_BYTES)
        told = json_of(body) if path in ("/route", "/register_session", "/remove_session", "/unregister") else {}
        worker = await self._worker(told) if path == "/unregister" else None
        if path == "/route" and self._starts(told):
            async with self._choosing:
                await self._choose_anew(connection, body, send)
            return
        status = await _pass(self._app, connection, body, send)
        if status != 200:
            return
        match path, told:
            case "/register_session", {"group_id": str(group), "worker_addr": str(address)}:
                self._strategy.begun(group, address)
            case "/remove_session", {"group_id": str(group)}:
                self._strategy.ended(group)
            case "/unregister", _ if worker is not None:
                self._strategy.gone(worker)

    def _starts(self, told: dict[str, Any]) -> bool:
        """Whether a proxy is wanted for a new group of sessions."""
        key = str(told.get("api_key")).encode()
        return told.get("path") == _START and hmac.compare_digest(key, self._admin_key.encode())

    async def _choose_anew(self, connection: Connection, body: bytes, send: Send) -> None:
        """Have the strategy asked, whatever was chosen for the admin key before."""
        sessions = self._state.session_registry
        kept = await sessions.lookup_by_key(self._admin_key)
        await sessions.revoke_session(_ADMIN_SESSION)
        await _pass(self._app, connection, body, send)
        await sessions.revoke_session(_ADMIN_SESSION)
        if kept is not None:
            await sessions.register_session(self._admin_key, _ADMIN_SESSION, kept)

    async def _worker(self, told: dict[str, Any]) -> str | None:
        """The address of the proxy that is to be unregistered."""
        if isinstance(told.get("worker_id"), str):
            found = await self._state.worker_registry.get_by_id(told["worker_id"])
            return None if found is None else str(found.worker_addr)
        address = told.get("worker_addr")
        return address if isinstance(address, str) else None


async def _pass(app: ASGIApp, connection: Connection, body: bytes, send: Send) -> int:
    """Pass a request on whose body was read. Returns the status of the answer."""
    status = 0
    left = [body]

    async def receive() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return {"type": "http.disconnect"}

    async def listening(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    await app(connection, receive, listening)
    return status


def router_app(config: Any, strategy: SteelyardStrategy) -> ListeningRouter:
    """AReaL's router with this strategy. ``config`` is its ``RouterConfig``."""
    areal_app: Any = import_module(f"{MODULE}.app")
    theirs = areal_app.get_strategy
    areal_app.get_strategy = lambda _: strategy
    try:
        app = areal_app.create_app(config)
    finally:
        areal_app.get_strategy = theirs
    return ListeningRouter(app, app.state, strategy, config.admin_api_key)


def install(controller: Any) -> None:
    """Have AReaL's ``RolloutControllerV2`` start this router. To be called before a controller is made."""
    theirs: Callable[..., Awaitable[tuple[str, int]]] = controller._async_fork_on_guard

    async def fork(self: Any, guard_addr: str, role: str, worker_index: int, raw_cmd: list[str], **more: Any) -> Any:
        return await theirs(self, guard_addr, role, worker_index, router_command(raw_cmd), **more)

    controller._async_fork_on_guard = fork


def router_command(command: Sequence[str]) -> list[str]:
    """A command that starts AReaL's router, turned into one that starts this one."""
    return [_OWN_MODULE if word == MODULE else word for word in command]


def main() -> None:
    """``python -m steelyard.live.adapters.areal``: takes what AReaL's own router takes."""
    import uvicorn

    router_config: Any = import_module(f"{MODULE}.config").RouterConfig
    usual = router_config()
    parser = argparse.ArgumentParser(description="AReaL's router, with Steelyard's choice of data proxies.")
    parser.add_argument("--host", default=usual.host)
    parser.add_argument("--port", type=int, default=usual.port)
    parser.add_argument("--admin-api-key", default=usual.admin_api_key)
    parser.add_argument("--poll-interval", type=float, default=usual.poll_interval)
    parser.add_argument("--worker-health-timeout", type=float, default=usual.worker_health_timeout)
    parser.add_argument("--routing-strategy", default="least-outstanding")
    parser.add_argument("--log-level", default=usual.log_level)
    given, _ = parser.parse_known_args()
    import_module("areal.infra.utils.http").validate_admin_api_key(given.host, given.admin_api_key)
    try:
        strategy = SteelyardStrategy(given.routing_strategy.replace("_", "-"))  # AReaL writes round_robin
    except UserError as mistake:
        sys.exit(str(mistake))
    app = router_app(router_config(**vars(given)), strategy)
    uvicorn.run(app, host=given.host, port=given.port, log_level=given.log_level, access_log=False)


if __name__ == "__main__":
    main()
