"""Servers of emulated engines: one port to each replica of a scenario."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import uvicorn

from steelyard.emulate.app import make_app
from steelyard.emulate.clock import Clock
from steelyard.emulate.content import ContentNames
from steelyard.emulate.engine import EmulatedEngine
from steelyard.emulate.metrics import Metrics
from steelyard.emulate.replica import EmulatedReplica, Loading
from steelyard.emulate.servers import LocalServer, listen, stop_on_signals
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
    servers = [_server(replica) for replica in replicas]
    running = [
        asyncio.ensure_future(server.serve(sockets=[each])) for server, each in zip(servers, sockets, strict=True)
    ]
    crashes = [asyncio.ensure_future(_crash(*each)) for each in zip(replicas, servers, strict=True)]
    stop_on_signals(servers)
    ready([each.getsockname()[1] for each in sockets])
    await asyncio.gather(*running)
    for each in crashes:
        each.cancel()
    return int(all(replica.crashed.is_set() for replica in replicas))


def _server(replica: EmulatedReplica) -> LocalServer:
    config = uvicorn.Config(
        make_app(replica), log_level="warning", access_log=False, loop="asyncio", lifespan="off", timeout_keep_alive=75
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
