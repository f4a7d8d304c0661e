"""The links of a fleet whose prompts are computed apart, and what use was made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from steelyard.fleet import RouterSettings, make_router
from steelyard.fleet.handover import Handover, Transfers
from steelyard.fleet.links import Link, Ports
from steelyard.model import kv_bytes_per_token
from steelyard.sim.setup import FleetSetup, Setup

_LATENCY_SECONDS = 50e-6  # to post a transfer and to be told of its end, beside the bytes themselves


def make_handover(setup: FleetSetup) -> Handover:
    """The way from prefill to decode engines that a scenario describes."""
    fleet, decodes = setup.scenario.fleet, setup.answers
    ports = Ports(_links(setup.takes_requests), _links(decodes))
    transfers = Transfers(
        token_bytes=kv_bytes_per_token(setup.model, decodes[0].engine.kv_cache_dtype),
        layers=setup.model.num_layers,
        ports=ports,
        latency=_LATENCY_SECONDS,
        layerwise=fleet.transfer.layerwise,
        first_token_from_prefill=fleet.transfer.first_token == "prefill",
    )
    settings = router_settings(setup, decodes)
    return Handover(make_router(fleet.decode_router, len(ports.into), setup.scenario.seed + 1, settings), transfers)


def router_settings(setup: FleetSetup, pools: Sequence[Setup]) -> RouterSettings:
    """What a router before these pools may want to know."""
    limits = pools[0].limits
    return RouterSettings(limits.block_size, limits.blocks, ttft=setup.scenario.slo.ttft or 1.0)


def _links(pools: Sequence[Setup]) -> list[Link]:
    """The NICs of each replica's GPUs together."""
    return [Link(each.pool.tp * each.gpu.nic_bandwidth) for each in pools for _ in range(each.pool.replicas)]


def link_use(ports: Ports, duration: float) -> dict[str, Any]:
    """How much the links of each side carried, and what share of the time they were in use."""
    return {"prefill_out": _use(ports.out, duration), "decode_in": _use(ports.into, duration)}


def _use(links: Sequence[Link], duration: float) -> dict[str, float]:
    per_second = 1 / duration if duration > 0 else 0.0
    shares = [link.carried / link.bandwidth * per_second for link in links]
    return {
        "bytes": sum(link.carried for link in links),
        "mean_use": sum(shares) / len(shares),
        "peak_use": max(shares),
        "busy": sum(link.busy for link in links) / len(links) * per_second,
    }
