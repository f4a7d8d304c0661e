"""The parts that every run has: its controller and its gateway.

A part is a coroutine that ends when it is cancelled, told to stop, or when the run is over, and can be started again,
in a process of its own or not. Cancelled, it leaves everything as a killed process would. Told to stop, it saves.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steelyard.balance.settings import CoreSettings
from steelyard.files.finding import is_there
from steelyard.live.checkpoints import checkpoint_forever
from steelyard.live.control import ControlServer
from steelyard.live.desk import TurnDesk
from steelyard.live.engines.condition import WatchRules
from steelyard.live.gateway import Gateway
from steelyard.live.journal import TurnJournal
from steelyard.live.keeper import Keeper, KeptEngine, Update
from steelyard.live.member import Address, RunMember
from steelyard.live.operate import Operations
from steelyard.live.planner import LivePlanner
from steelyard.live.pool import LivePool, PoolKeeper
from steelyard.live.rules import GatewayRules
from steelyard.live.serve import serve_app
from steelyard.live.state import news_for, state_for
from steelyard.live.turn_runner import DeskSettings
from steelyard.live.wire import Message, Role

HOST = "127.0.0.1"


@dataclass(frozen=True)
class ControllerSpec:
    """What a controller needs to know: its store, where it listens, the run's policies, its engines."""

    store: Path
    port: int
    steps: int
    settings: Callable[[], CoreSettings]
    engines: Callable[[], Sequence[KeptEngine]]
    update: Update
    speed: float = 1.0
    facts: Mapping[str, str] = field(default_factory=dict)  # about the run, for readers of its store
    rules: WatchRules = field(default_factory=WatchRules)  # when an engine hangs
    planner: Callable[[ControlServer, Keeper], LivePlanner] | None = None  # that changes the engines
    pool: Callable[[], LivePool | None] = lambda: None


class ControllerPart:
    """The controller and its keeper of engines."""

    def __init__(self, spec: ControllerSpec) -> None:
        self.server = ControlServer(speed=spec.speed)
        self.keeper = Keeper(self.server, spec.update, spec.rules)
        self.planner = None if spec.planner is None else spec.planner(self.server, self.keeper)
        self._spec = spec

    async def run(self, stop: asyncio.Event) -> None:
        """Begin the run, or take it over."""
        spec, server, keeper, planner = self._spec, self.server, self.keeper, self.planner
        server.state = lambda role: state_for(role, server.controller)
        server.news = self._news
        server.operate = Operations(server, keeper, spec.steps, planner).answer
        pooled = spec.pool()
        settings = None if is_there(spec.store) and pooled is None else spec.settings()
        pool = None
        if pooled is not None:
            assert settings is not None
            pool = PoolKeeper(server, keeper, settings, pooled)
        server.open(spec.store, settings)
        for name, value in spec.facts.items():
            server.controller.store.keep(name, value)
        serving = asyncio.ensure_future(server.serve(HOST, spec.port, lambda _: None))
        keeper.begin(spec.engines() if planner is None else planner.begin())
        if pool is not None:
            pool.begin()
        try:
            parts = [serving, stop.wait(), keeper.published(spec.steps), checkpoint_forever(spec.store)]
            await first_of(parts)
            server.notify({"over": True})
            server.controller.save()
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

    def _news(self, role: Role) -> Message:
        planned = {} if self.planner is None else self.planner.news(role)
        return news_for(role, self.server.controller, self.keeper.rows()) | planned


class GatewayPart:
    """The gateway, a member of the run."""

    def __init__(self, journal: Path, port: int, address: Callable[[], Address], settings: DeskSettings) -> None:
        self.desk = TurnDesk(TurnJournal(journal), lambda *events: self.member.report(*events), settings)
        self.member = RunMember(address, "gateway", self.desk)
        self._journal, self._port = journal, port

    async def run(self, stop: asyncio.Event) -> None:
        """Serve once the controller has told how things stand."""
        parts = [self.member.run(), self.desk.watch(), self._serve(), stop.wait(), self.member.over.wait()]
        parts.append(checkpoint_forever(self._journal))
        try:
            await first_of(parts)
        finally:
            await self.desk.close()

    async def _serve(self) -> None:
        await self.member.connected.wait()
        await serve_app(Gateway(None, GatewayRules(), self.desk), HOST, self._port, lambda _: None)


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
