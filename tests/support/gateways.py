"""Gateways for tests, served over real connections, and desks whose turns are placed at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from steelyard.balance.commands import Place
from steelyard.balance.events import Begun, Resumed, Returned
from steelyard.balance.kinds import Event
from steelyard.balance.route.serving import serving_router
from steelyard.emulate.servers import LocalServer, listen, serve_at
from steelyard.live.client_connection import server_config
from steelyard.live.desk import TurnDesk
from steelyard.live.fleet import EngineFleet
from steelyard.live.gateway import Gateway
from steelyard.live.journal import TurnJournal
from steelyard.live.turn_runner import DeskSettings
from steelyard.live.upstream import Upstream

HOST = "127.0.0.1"


def fleet_of(urls: list[str], router: str = "round-robin") -> EngineFleet:
    """A fleet of engines at these addresses."""
    return EngineFleet([Upstream.of(url) for url in urls], serving_router(router, len(urls), 0))


def placing_desk(
    folder: Path, urls: list[str], settings: DeskSettings | None = None, *, places: bool = True
) -> tuple[TurnDesk, list[Event]]:
    """A desk whose turns are all placed on the first engine, unless the test does it. Also what it has reported."""
    reported: list[Event] = []

    def report(*events: Event) -> None:
        for event in events:
            reported.append(event)
            if places and isinstance(event, Begun | Returned | Resumed):
                place = Place(event.trajectory, 0, epoch=event.epoch + 1)
                asyncio.get_running_loop().call_later(0.001, desk.carry_out, place)  # once the turn waits for it

    desk = TurnDesk(TurnJournal(folder / "journal.db"), report, settings or DeskSettings())
    rows = {str(number): {"url": url, "epoch": 0, "version": 0, "gpus": 1} for number, url in enumerate(urls)}
    desk.notice({"engines": rows})
    return desk, reported


@asynccontextmanager
async def serving(app: Gateway) -> AsyncIterator[int]:
    """Serve a gateway; its port."""
    listener = listen(HOST, 0)
    server = LocalServer(server_config(app, app.rules))
    task = asyncio.ensure_future(serve_at(server, listener))
    try:
        while not server.started:
            await asyncio.sleep(0.005)
        yield listener.getsockname()[1]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
