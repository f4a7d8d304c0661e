"""Emulated engines for tests, served over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from steelyard.emulate.replica import EmulatedReplica
from steelyard.emulate.serve import replicas_of, serve
from steelyard.scenario import scenario_from_dict

SCENARIO: dict[str, Any] = {
    "name": "emulated",
    "model": "llama-3.1-8b",
    "fleet": {"gpu": "h200"},
    "workload": {"arrivals": {"kind": "burst"}, "requests": 4, "prompt": 100, "output": 30},
}


@asynccontextmanager
async def served(
    speed: float = 50.0, **fleet: Any
) -> AsyncIterator[tuple[list[httpx.AsyncClient], list[EmulatedReplica]]]:
    """Clients of the replicas of a small fleet."""
    replicas = replicas_of(scenario_from_dict({**SCENARIO, "fleet": {**SCENARIO["fleet"], **fleet}}), speed)
    ports: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    server = asyncio.ensure_future(serve(replicas, "127.0.0.1", 0, ports.set_result))
    clients = [httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) for port in await ports]
    try:
        for client in clients:
            assert (await client.get("/health")).status_code == 200
        yield clients, replicas
    finally:
        for client in clients:
            await client.aclose()
        for replica in replicas:
            replica.crash()
        await server
