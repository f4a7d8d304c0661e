"""Emulated engines of a post-training scenario, started and stopped while it runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp

from steelyard.emulate.clock import Clock
from steelyard.emulate.content import ContentNames
from steelyard.emulate.engine import EmulatedEngine
from steelyard.emulate.metrics import Metrics
from steelyard.emulate.replica import CacheSource, EmulatedReplica, Loading
from steelyard.emulate.serve import serve_one, server_of, warm_up
from steelyard.emulate.servers import listen
from steelyard.engine import EngineLog
from steelyard.live.access import Access, guarded
from steelyard.live.addresses import HOST
from steelyard.model import Layout, weight_bytes
from steelyard.posttrain.setup import PosttrainSetup

_REMEMBERED = 2  # times the KV blocks of an engine: blocks of prompts whose names are remembered
_DISK_RATE = 2e9  # bytes/s of loading weights from local disk; an assumption


@dataclass
class NodeEngine:
    """An engine that is served at a port."""

    replica: EmulatedReplica
    url: str
    serving: asyncio.Future[None]


class EmulatedNode:
    """Starts engines of a scenario's kinds, each at a port of its own. ``listen`` says where; with tokens, engines
    answer only those who have one."""

    def __init__(
        self,
        setup: PosttrainSetup,
        speed: float,
        listen: Callable[[int], socket.socket] = lambda port: listen(HOST, port),
        access: Access | None = None,
    ) -> None:
        self.setup, self.speed = setup, speed
        self._listen, self._access = listen, Access() if access is None else access
        self.engines: dict[str, NodeEngine] = {}

    def start(self, tp: int, port: int = 0) -> str:
        """Start an engine, at a free port if none is given. Returns its address."""
        replica = self._replica(tp)
        at = self._listen(port)
        host, found = at.getsockname()[:2]
        server = server_of(replica, self.around)
        serving = asyncio.ensure_future(serve_one(replica, server, at))
        engine = NodeEngine(replica, f"http://{host}:{found}", serving)
        self.engines[engine.url] = engine
        return engine.url

    def around(self, app: ASGIApp) -> ASGIApp:
        """What is served, around the application of an engine."""
        return guarded(app, self._access, "engine")

    async def stop(self, url: str) -> None:
        """Stop an engine at once, as if its process were killed."""
        engine = self.engines.pop(url, None)
        if engine is not None:
            engine.replica.crash()
            await engine.serving

    async def close(self) -> None:
        """Stop all engines."""
        for url in list(self.engines):
            await self.stop(url)

    def _replica(self, tp: int) -> EmulatedReplica:
        kind, setup = self.setup.kinds[tp], self.setup
        names = ContentNames(kind.limits.block_size, _REMEMBERED * kind.limits.blocks)
        engine = kind.engine(names, EngineLog())
        warm_up(engine)
        weights = weight_bytes(setup.model, tp=Layout(tp=tp))
        return EmulatedReplica(
            setup.model.name,
            EmulatedEngine(engine, names, kind.host),
            Clock(self.speed),
            lambda number: 16,
            Metrics(setup.model.name, len(self.engines)),
            Loading(setup.job.sync, weights / kind.gpu.pcie_bandwidth, weights / _DISK_RATE),
            tp,
            lambda source, tokens: self._fetch_seconds(tp, source, tokens),
        )

    def _fetch_seconds(self, tp: int, source: CacheSource, tokens: int) -> float:
        kinds = self.setup.kinds
        if source.gpus == 0:
            return kinds[tp].fetch_seconds(tokens)
        return kinds[tp].move_seconds(kinds[source.gpus], tokens)
