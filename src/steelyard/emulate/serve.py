"""Servers of emulated engines: one port to each replica of a scenario."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace

import uvicorn
from starlette.types import ASGIApp

from steelyard.collector import collector_on_new
from steelyard.emulate.app import make_app
from steelyard.emulate.clock import Clock
from steelyard.emulate.content import ContentNames
from steelyard.emulate.engine import EmulatedEngine
from steelyard.emulate.metrics import Metrics
from steelyard.emulate.replica import EmulatedReplica, Loading
from steelyard.emulate.servers import LocalServer, StampedProtocol, listen, serve_at, stop_on_signals
from steelyard.engine import Engine
from steelyard.errors import UserError
from steelyard.scenario import Scenario
from steelyard.sim import draw_workload, set_up
from steelyard.sim.engines import make_engines
from steelyard.sim.setup import FleetSetup, Setup

_DISK_RATE = 2e9  # bytes/s of loading weights from local disk; an assumption
_REMEMBERED = 8  # times the KV blocks of an engine: blocks of prompts whose names are remembered


def replicas_of(scenario: Scenario, speed: float, name: str | None = None) -> list[EmulatedReplica]:
    """The replicas of a scenario, idle. Their clocks start now."""
    setup = set_up(scenario)
    _check(setup)
    outputs = draw_workload(setup).output.tolist()
    found: list[EmulatedReplica] = []
    for pool in setup.pools:
        served = name or pool.serves or pool.model.name
        single = replace(pool, pool=pool.pool.replace(replicas=1))
        alone = FleetSetup(setup.scenario, setup.model, setup.host, (single,))
        for _ in range(pool.pool.replicas):
            names = ContentNames(pool.limits.block_size, _REMEMBERED * pool.limits.blocks)
            (engine,) = make_engines(alone, names)
            warm_up(engine)
            found.append(
                EmulatedReplica(
                    served,
                    EmulatedEngine(engine, names, setup.host),
                    Clock(speed),
                    lambda number: int(outputs[number % len(outputs)]),
                    Metrics(served, len(found)),
                    _loading(pool),
                    pool.layout.gpus,
                )
            )
    return found


def warm_up(engine: Engine) -> None:
    """Compute what the times of decode steps are read from, which takes milliseconds for some batch sizes."""
    for requests in range(1, engine.limits.max_num_seqs + 1):
        engine.cost.decode_line(requests, requests, 1)


def _check(setup: FleetSetup) -> None:
    for each in setup.pools:
        where = f"fleet.pools: {each.pool.name}"
        if each.pool.role != "serve":
            raise UserError(f"{where}: engines with the role {each.pool.role} cannot be emulated; use role serve")
        if each.pool.dp > 1 or each.layout.pp > 1:
            raise UserError(f"{where}: engines with dp or pp above 1 cannot be emulated; use replicas or tp")
    if setup.scenario.dynamics or any(each.pool.autoscale for each in setup.pools):
        raise UserError("dynamics and autoscale belong to the fleet's operator, who is real here; leave them out")


def _loading(pool: Setup) -> Loading:
    weights = pool.memory.weights  # of one GPU; every GPU has links of its own
    return Loading(weights / pool.gpu.nic_bandwidth, weights / pool.gpu.pcie_bandwidth, weights / _DISK_RATE)


async def serve(replicas: list[EmulatedReplica], host: str, port: int, ready: Callable[[list[int]], None]) -> int:
    """Serve each replica at a port of its own, from ``port`` on, until interrupted; 0 chooses free ports.

    A replica that is told to crash closes its port and drops its connections. Returns 1 if all have crashed.
    """
    sockets = [listen(host, port + place if port else 0) for place in range(len(replicas))]
    servers = [server_of(replica) for replica in replicas]
    running = [asyncio.ensure_future(serve_one(*each)) for each in zip(replicas, servers, sockets, strict=True)]
    stop_on_signals(servers)
    ready([each.getsockname()[1] for each in sockets])
    with collector_on_new():  # as vLLM does
        await asyncio.gather(*running)
    return int(all(replica.crashed.is_set() for replica in replicas))


async def serve_one(replica: EmulatedReplica, server: LocalServer, at: socket.socket) -> None:
    """Serve a replica at a socket until it crashes or its server is told to exit."""
    crash = asyncio.ensure_future(_crash(replica, server))
    try:
        await serve_at(server, at)
    finally:
        crash.cancel()


def server_of(replica: EmulatedReplica, around: Callable[[ASGIApp], ASGIApp] = lambda app: app) -> LocalServer:
    """The HTTP server of a replica, with something around its application."""
    config = uvicorn.Config(
        around(make_app(replica)),
        http=StampedProtocol,
        proxy_headers=False,
        log_level="warning",
        access_log=False,
        loop="asyncio",
        lifespan="off",
        timeout_keep_alive=75,
    )
    return LocalServer(config)


async def _crash(replica: EmulatedReplica, server: LocalServer) -> None:
    """Drop everything without a word, as a process that is killed does."""
    await replica.crashed.wait()
    for listener in server.servers:
        listener.close()
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    server.should_exit = server.force_exit = True
