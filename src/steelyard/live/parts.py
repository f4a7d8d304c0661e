"""The parts that every run has: its controller and its gateway.

A part is a coroutine that ends when it is cancelled, told to stop, or when the run is over, and can be started again,
in a process of its own or not. Cancelled, it leaves everything as a killed process would. Told to stop, it saves.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steelyard.balance.settings import CoreSettings
from steelyard.collector import collector_on_new
from steelyard.emulate.servers import LocalServer, serve_at
from steelyard.files.finding import is_there
from steelyard.live.addresses import CONTROLLER, GATEWAY, HOST, METRICS, RunAddresses
from steelyard.live.checkpoints import checkpoint_forever
from steelyard.live.client_connection import server_config
from steelyard.live.control import ControlServer
from steelyard.live.desk import TurnDesk
from steelyard.live.engines.condition import WatchRules
from steelyard.live.gateway import Gateway
from steelyard.live.journal import TurnJournal
from steelyard.live.keeper import Keeper, KeptEngine, Update
from steelyard.live.member import Address, RunMember
from steelyard.live.operate import Operations
from steelyard.live.page import ControllerPage
from steelyard.live.planner import LivePlanner
from steelyard.live.pool import LivePool, PoolKeeper
from steelyard.live.rules import GatewayRules
from steelyard.live.runs import OVER
from steelyard.live.state import news_for, state_for
from steelyard.live.turn_runner import DeskSettings
from steelyard.live.wire import Message, Role


@dataclass(frozen=True)
class ControllerSpec:
    """What a controller needs to know: its store, where it listens, the run's policies, its engines."""

    addresses: RunAddresses
    store: Path
    port: int
    steps: int
    settings: Callable[[], CoreSettings]
    engines: Callable[[], Sequence[KeptEngine]]
    update: Update
    speed: float = 1.0
    metrics: int = 0  # port of its page for operators; 0 is any
    facts: Mapping[str, str] = field(default_factory=dict)  # about the run, for readers of its store
    rules: WatchRules = field(default_factory=WatchRules)  # when an engine hangs
    planner: Callable[[ControlServer, Keeper], LivePlanner] | None = None  # that changes the engines
    pool: Callable[[], LivePool | None] = lambda: None


class ControllerPart:
    """The controller, its keeper of engines and its page for operators."""

    def __init__(self, spec: ControllerSpec) -> None:
        self.server = ControlServer(spec.addresses.access, spec.speed)
        self.keeper = Keeper(self.server, spec.update, spec.rules)
        self.planner = None if spec.planner is None else spec.planner(self.server, self.keeper)
        self._spec = spec

    async def run(self, stop: asyncio.Event) -> None:
        """Begin the run, or take it over. Told to stop, it leaves the run to the next controller."""
        spec, server, keeper, planner = self._spec, self.server, self.keeper, self.planner
        server.state = lambda role: state_for(role, server.controller)
        server.news = self._news
        pool = self._open()
        server.operate = Operations(server, keeper, spec.steps, stop, planner).answer
        for name, value in spec.facts.items():
            server.controller.store.keep(name, value)
        page = ControllerPage(server, keeper, spec.addresses.access)
        serving = asyncio.ensure_future(server.serve(spec.addresses.listen(spec.port, CONTROLLER)))
        showing = page.serve(spec.addresses.listen(spec.metrics, METRICS))
        keeper.begin(spec.engines() if planner is None else planner.begin())
        if pool is not None:
            pool.begin()
        try:
            parts = [asyncio.shield(serving), showing, stop.wait(), keeper.published(spec.steps)]
            with collector_on_new():
                await first_of([*parts, *_checkpoints(spec.addresses, spec.store)])
            await server.release()
            if server.controller.core.published >= spec.steps:
                server.controller.store.keep(OVER, "yes")
                server.notify({"over": True})
        finally:
            serving.cancel()
            if planner is not None:
                await planner.close()
            if pool is not None:
                pool.close()
            await keeper.close()
            with suppress(asyncio.CancelledError, Exception):
                await serving
            server.controller.store.close()

    def _open(self) -> PoolKeeper | None:
        """Open the store, and have its pool taken care of, if it has one."""
        spec, pooled = self._spec, self._spec.pool()
        settings = None if is_there(spec.store) and pooled is None else spec.settings()
        pool = None
        if pooled is not None:
            assert settings is not None
            pool = PoolKeeper(self.server, self.keeper, settings, pooled)
        self.server.open(spec.store, settings, shared=not spec.addresses.here.is_local)
        return pool

    def _news(self, role: Role) -> Message:
        planned = {} if self.planner is None else self.planner.news(role)
        return news_for(role, self.server.controller, self.keeper.rows()) | planned


class GatewayPart:
    """The gateway, a member of the run."""

    def __init__(
        self, addresses: RunAddresses, journal: Path, port: int, address: Callable[[], Address], settings: DeskSettings
    ) -> None:
        settings = replace(settings, engine_token=addresses.tokens.of("engine"))
        self.desk = TurnDesk(
            TurnJournal(journal, shared=not addresses.here.is_local),
            lambda *events: self.member.report(*events),
            settings,
        )
        self.member = RunMember(address, "gateway", self.desk)
        self._places, self._journal, self._port = addresses, journal, port

    async def run(self, stop: asyncio.Event) -> None:
        """Serve once the controller has told how things stand."""
        parts = [self.member.run(), self.desk.watch(), self._serve(), stop.wait(), self.member.over.wait()]
        try:
            await first_of([*parts, *_checkpoints(self._places, self._journal)])
        finally:
            await self.desk.close()

    async def _serve(self) -> None:
        await self.member.connected.wait()
        app = Gateway(None, GatewayRules(self._places.access), self.desk)
        listener = self._places.listen(self._port, GATEWAY)
        config = server_config(app, app.rules)
        config.load()
        with collector_on_new():
            await serve_at(LocalServer(config), listener)


def _checkpoints(addresses: RunAddresses, database: Path) -> list[Coroutine[Any, Any, None]]:
    """What keeps a database's write-ahead log short. One that several machines share has none."""
    return [checkpoint_forever(database)] if addresses.here.is_local else []


async def first_of(parts: Sequence[Awaitable[Any]]) -> None:
    """Run until one of these ends, which raises what went wrong with it. The others are cancelled."""
    tasks = [asyncio.ensure_future(each) for each in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports: list[int] = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
