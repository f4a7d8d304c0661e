"""Links between prefill and decode pools, and their use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.fleet.handover import Handover, Transfers
from steelyard.fleet.links import Link, Port, Ports
from steelyard.hardware import HANDOVER_START_SECONDS, topology_of
from steelyard.model import kv_bytes_per_token
from steelyard.records import Floats
from steelyard.sim.routers import router_before
from steelyard.sim.setup import FleetSetup, Setup
from steelyard.sim.summary import LinkUse


def make_handover(setup: FleetSetup) -> Handover:
    """The handover from prefill to decode engines of a scenario."""
    fleet, decodes = setup.scenario.fleet, setup.answers
    ports = _ports(setup)
    token_bytes, layers = _kv(decodes[0])
    transfers = Transfers(
        token_bytes=token_bytes,
        layers=layers,
        ports=ports,
        latency=HANDOVER_START_SECONDS,
        layerwise=fleet.transfer.layerwise,
        first_token_from_prefill=fleet.transfer.first_token == "prefill",
        by_model={each.serves: _kv(each) for each in decodes},
    )
    return Handover(router_before(setup, decodes, fleet.decode_router, setup.scenario.seed + 1), transfers)


def _kv(each: Setup) -> tuple[float, int]:
    """KV bytes of a token, and the number of layers with KV cache."""
    return kv_bytes_per_token(each.model, each.engine.kv_cache_dtype), each.model.num_layers


def _ports(setup: FleetSetup) -> Ports:
    """Ports of all replicas. Replicas fill nodes in order; a pool with other GPUs starts a new node."""
    placed: dict[str, list[Port]] = {"out": [], "in": []}
    uplinks: dict[tuple[str, int], Link] = {}
    node = used = 0
    pools = [each for each in setup.pools if each.ranks]
    for i, each in enumerate(pools):
        topology = topology_of(each.gpu, setup.scenario.fleet.topology)
        if i and each.gpu != pools[i - 1].gpu:
            node, used = node + 1, 0
        way = "out" if each.pool.role == "prefill" else "in"
        gpus = each.gpus // each.ranks
        ports = topology.nodes_per_leaf * topology.gpus_per_node
        for _ in range(each.ranks):
            if used and used + gpus > topology.gpus_per_node:
                node, used = node + 1, 0
            leaf = node // topology.nodes_per_leaf
            uplink = None
            if topology.oversubscription > 1:
                width = ports * topology.nic.rate / topology.oversubscription
                uplink = uplinks.setdefault((way, leaf), Link(width))
            port = Port(Link(gpus * topology.nic.rate), Link(gpus * topology.peer.rate), node, leaf, uplink)
            placed[way].append(port)
            used += gpus
            node, used = node + used // topology.gpus_per_node, used % topology.gpus_per_node
    return Ports(placed["out"], placed["in"])


def last_transfer(ports: Ports) -> float:
    """When the last transfer ended."""
    return max(link.last for port in (*ports.out, *ports.into) for link in (port.nic, port.peer))


@dataclass(frozen=True, eq=False)
class LinkSpans:
    """So many links of a kind, and when one of them was busy, link after link."""

    links: int
    start: Floats
    end: Floats


def link_spans(ports: Ports) -> dict[str, LinkSpans]:
    """By side: when its links were busy."""
    found = {}
    for name, links in _by_side(ports).items():
        spans = np.concatenate([np.frombuffer(link.spans, dtype=np.float64) for link in links]).reshape(-1, 2)
        found[name] = LinkSpans(len(links), spans[:, 0], spans[:, 1])
    return found


def link_use(ports: Ports, duration: float) -> dict[str, LinkUse]:
    """By side: bytes that its links carried, and the share of time in which they were busy."""
    return {name: _use(links, duration) for name, links in _by_side(ports).items()}


def _by_side(ports: Ports) -> dict[str, list[Link]]:
    found = {"prefill_out": [port.nic for port in ports.out], "decode_in": [port.nic for port in ports.into]}
    found["inside_nodes"] = [port.peer for port in ports.out]
    uplinks = {id(port.uplink): port.uplink for port in (*ports.out, *ports.into) if port.uplink is not None}
    if uplinks:
        found["uplinks"] = list(uplinks.values())
    return found


def _use(links: Sequence[Link], duration: float) -> LinkUse:
    per_second = 1 / duration if duration > 0 else 0.0
    shares = [link.carried / link.bandwidth * per_second for link in links]
    return LinkUse(
        bytes=sum(link.carried for link in links),
        mean_use=sum(shares) / len(shares),
        peak_use=max(shares),
        busy=sum(link.busy for link in links) / len(links) * per_second,
    )
