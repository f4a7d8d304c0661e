"""Communication inside a group of GPUs: seconds by bytes, ranks and topology.

Measured tables answer where they can; the rest is start-up time plus bytes over the slowest link. The constants are
those of NCCL's own tuner and of published measurements; none belongs to one capture. What ``size`` counts:

- allreduce (the one vLLM chooses for a tensor-parallel group), nccl_allreduce (what other groups use), allgather,
  reducescatter: bytes of the whole tensor
- alltoall: bytes each rank holds for all ranks together
- broadcast, send: bytes of the message
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal, Protocol

import numpy as np

from steelyard.cost.source import ANALYTIC, Estimate, Floats
from steelyard.hardware import Link, Span, Topology
from steelyard.model import Collective

Kind = Literal["allreduce", "nccl_allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "send"]
Step = Literal["dispatch", "combine"]
Mode = Literal["naive", "allgather_reducescatter", "high_throughput", "low_latency"]


@dataclass(frozen=True)
class Wire:
    """A way NCCL moves bytes: time to start, time per hop beyond the link's own, and the share of its rate.

    ``most`` bounds what a node sends to others this way, in bytes/s.
    """

    start: float
    hop: Mapping[str, float]
    share: float
    most: float = math.inf


# NCCL 2.28's tuner. Low latency sends a flag with every 8 bytes (141 of 360 GB/s on Hopper; 35 to 45 GB/s from a node),
# its 128-byte form needs NVLink, "simple" waits for whole chunks.
LOW_LATENCY = Wire(6.6e-6, {"nvlink": 0.0, "pcie": 0.0, "network": 0.0}, 0.39, most=40e9)
LINES = Wire(14.0e-6, {"nvlink": 1.3e-6, "network": 1.3e-6}, 0.92)
SIMPLE = Wire(8.4e-6, {"nvlink": 2.8e-6, "pcie": 4.7e-6, "network": 11.3e-6}, 1.0)
TREE_SHARE = 0.92  # of a ring's rate, the same tuner
NVLS_SECONDS = 25e-6  # until reductions inside the switch run, the same tuner
NVLS_TRAFFIC = 1.25  # a byte crosses each link once, and once per rank more: taken for four, so more are never faster

# vLLM's own all-reduce inside a node: every GPU reads all others (one shot), or sums a part and reads the other sums
# (two shots, a barrier more). Starts as replayed from a graph on Hopper: 4.2 to 5.3 and 8 to 13 us; A100, B200 and
# GB200 take 5 to 8 and 10 to 21.
CUSTOM_BYTES = 8 << 20  # from here on vLLM leaves it to NCCL
CUSTOM_RANKS = (2, 4, 6, 8)
ONE_SHOT_SECONDS = 4.5e-6
TWO_SHOT_SECONDS = 8.5e-6

# DeepEP. Low latency: kernels take 12 us for one token inside a node (22 on B200), and published times for 16 to 256
# ranks leave 30 us at no bytes. They store token by token, which gets 0.49 to 0.68 of an NVLink's rated bytes, the mean
# over both steps on H800, H200 and B200 being 0.58. High throughput: what vLLM waits for few tokens (its dispatch lets
# the host read how many come); then as fast as the 20 multiprocessors it is given can copy, 14 to 18 GB/s each on H100,
# H200 and B200 alike, in line from 4 of them to 24.
LOW_LATENCY_SECONDS = {"inside": 12e-6, "between": 30e-6}
LOW_LATENCY_SHARE = 0.58
HIGH_THROUGHPUT_SECONDS: dict[Step, float] = {"dispatch": 250e-6, "combine": 80e-6}
HIGH_THROUGHPUT_RATE = 20 * 15e9


@dataclass(frozen=True)
class Exchange:
    """Tokens on their way to their experts, or back: one row of bytes per token, to ``top_k`` of the experts."""

    mode: Mode
    step: Step
    row_bytes: int
    top_k: int
    experts: int


class Tables(Protocol):
    """Measured collectives of one kind of GPU; None for what was not measured."""

    def collective(self, kind: Kind, span: Span, size: Floats) -> Estimate | None:
        """Seconds by bytes."""
        ...

    def exchange(self, exchange: Exchange, span: Span, tokens: Floats) -> Estimate | None:
        """Seconds by tokens of each rank."""
        ...


@dataclass(frozen=True)
class Collectives:
    """How long ranks of a fleet talk. A bare number of ranks is a group that starts with a node."""

    topology: Topology
    tables: Tables | None = None

    def seconds(self, kind: Kind, ranks: int | Span, size: Floats) -> Floats:
        """Seconds of a collective for each number of bytes."""
        return self.estimate(kind, ranks, size).seconds

    def estimate(self, kind: Kind, ranks: int | Span, size: Floats) -> Estimate:
        """The same with where each comes from."""
        span = self._span(ranks)
        tables = self._tables(span)
        measured = tables.collective(kind, span, size) if tables else None
        return measured or _analytic(span, size, _FORMULAS[kind](self.topology, span, size))

    def operator(self, operator: Collective, rows: Floats) -> Estimate:
        """A collective of a step, by its rows; one with a mode takes tokens to their experts or back."""
        exchange, span = exchange_of(operator), self.topology.span(operator.ranks, operator.first, operator.stride)
        if exchange is None:
            return self.estimate(operator.kind, span, rows * operator.bytes)
        return self.exchange(exchange, span, rows)

    def exchange(self, exchange: Exchange, ranks: int | Span, tokens: Floats) -> Estimate:
        """Experts' all-to-all when each rank has so many tokens."""
        span = self._span(ranks)
        own, dispatch = tokens * exchange.row_bytes, exchange.step == "dispatch"
        if exchange.mode == "allgather_reducescatter":
            return self.estimate("allgather" if dispatch else "reducescatter", span, own * span.ranks)
        if exchange.mode == "naive" and dispatch:  # one rank after the other sends all it has
            each = self.estimate("broadcast", span, own)
            return Estimate(span.ranks * each.seconds, each.provenance)
        if exchange.mode == "naive":
            return self.estimate("nccl_allreduce", span, own * span.ranks)
        tables = self._tables(span)
        measured = tables.exchange(exchange, span, tokens) if tables else None
        formula = _low_latency if exchange.mode == "low_latency" else _high_throughput
        return measured or _analytic(span, tokens, formula(self.topology, span, own, exchange))

    def _tables(self, span: Span) -> Tables | None:
        return self.tables if span.ranks > 1 and self.topology.usual_node else None

    def _span(self, ranks: int | Span) -> Span:
        return ranks if isinstance(ranks, Span) else self.topology.span(ranks)


def exchange_of(operator: Collective) -> Exchange | None:
    """What takes tokens to their experts or back, if that is what a collective does."""
    if operator.mode is None:
        return None
    step: Step = "dispatch" if operator.name == "dispatch" else "combine"
    return Exchange(operator.mode, step, operator.bytes, operator.top_k, operator.experts)


def multicast(link: Link, senders: int, receivers: int, size: Floats) -> Floats:
    """Every sender sends ``size`` bytes to every receiver; the side with fewer GPUs has the fuller links."""
    return np.where(size > 0, _direct(link, max(senders, receivers) * size), 0.0)


def _analytic(span: Span, size: Floats, seconds: Floats) -> Estimate:
    return Estimate.all_of(np.where((size > 0) & (span.ranks > 1), seconds, 0.0), ANALYTIC)


# -- NCCL ---------------------------------------------------------------------------------------------------------


def nccl_allreduce(topology: Topology, span: Span, size: Floats) -> Floats:
    """The fastest of NCCL's ways for each size: it, too, compares what its tuner expects of each."""
    ways = [_ring(topology, span, size, rounds=2), _tree(topology, span, size)]
    if topology.gpu.nvls_share and span.fewest > 1:
        ways.append(_in_switch(topology, span, size))
    return reduce(np.minimum, ways)


def _ring(topology: Topology, span: Span, size: Floats, rounds: int) -> Floats:
    """Parts go round all ranks: once to be summed or gathered, twice for both."""
    between = rounds * (span.nodes - 1)
    inside = rounds * (span.ranks - 1) - between
    moved = rounds * (span.ranks - 1) / span.ranks * size
    return _fastest(topology, span, inside, between, moved)


def _tree(topology: Topology, span: Span, size: Floats) -> Floats:
    """Up and down a chain through each node and a tree over the nodes; a tree's node waits for two others."""
    inside = 2 * (span.most - 1)
    between = 2 * 2 * math.ceil(math.log2(span.nodes))
    return _fastest(topology, span, inside, between, 2.0 * size / TREE_SHARE)


def _in_switch(topology: Topology, span: Span, size: Floats) -> Floats:
    """NVLink switches add up inside nodes (NVLS), a tree of nodes does the rest, both at once."""
    moved = NVLS_TRAFFIC * size / (topology.peer.rate * topology.gpu.nvls_share)
    if span.nodes == 1:
        return NVLS_SECONDS + moved
    network = topology.network(span)
    levels = 2 * math.ceil(math.log2(span.nodes)) * (network.latency + SIMPLE.hop["network"])
    return NVLS_SECONDS + levels + np.maximum(moved, 2.0 * size / (span.fewest * network.rate))


def _fastest(topology: Topology, span: Span, inside: int, between: int, moved: Floats) -> Floats:
    """Hops inside nodes and between them, and bytes that pass the slowest link, the best way."""
    network = topology.network(span)
    ways = []
    for wire in (LOW_LATENCY, LINES, SIMPLE):
        if topology.peer.kind not in wire.hop:
            continue
        start = wire.start + inside * (topology.peer.latency + wire.hop[topology.peer.kind])
        start += between * (network.latency + wire.hop["network"])
        rate = topology.inside(span).rate * wire.share if span.most > 1 else math.inf
        if span.nodes > 1:
            rate = min(rate, span.fewest * network.rate * wire.share, wire.most)
        ways.append(start + moved / rate)
    return reduce(np.minimum, ways)


def _broadcast(topology: Topology, span: Span, size: Floats) -> Floats:
    between = span.nodes - 1
    return _fastest(topology, span, span.ranks - 1 - between, between, size)


def _alltoall(topology: Topology, span: Span, size: Floats) -> Floats:
    """Everyone sends to everyone at once: what stays in the node goes over its links, the rest through each NIC."""
    near, far = _near_and_far(span)
    inside = _direct(topology.inside(span), near * size)
    return inside if span.nodes == 1 else np.maximum(inside, _direct(topology.network(span), far * size))


def _send(topology: Topology, span: Span, size: Floats) -> Floats:
    return _direct(topology.link(span), size)


def _direct(link: Link, size: Floats) -> Floats:
    """One GPU's bytes over one link, without anyone passing them on."""
    ways = (
        wire.start + link.latency + wire.hop[link.kind] + size / (link.rate * wire.share)
        for wire in (LOW_LATENCY, SIMPLE)
    )
    return reduce(np.minimum, ways)


def _near_and_far(span: Span) -> tuple[float, float]:
    """Of what a rank sends evenly to all, the most that goes to others in its node, and the most to other nodes."""
    return (span.most - 1) / span.ranks, (span.ranks - span.fewest) / span.ranks


# -- vLLM's all-reduce --------------------------------------------------------------------------------------------


def _allreduce(topology: Topology, span: Span, size: Floats) -> Floats:
    """Small tensors inside a node: vLLM's kernels (over PCIe for pairs only); all others: NCCL."""
    nccl = nccl_allreduce(topology, span, size)
    wired = topology.peer.kind == "nvlink" or span.ranks == 2
    if span.nodes > 1 or span.ranks not in CUSTOM_RANKS or not wired:
        return nccl
    rate = topology.peer.rate
    one = ONE_SHOT_SECONDS + (span.ranks - 1) * size / rate
    two = TWO_SHOT_SECONDS + 2.0 * (span.ranks - 1) / span.ranks * size / rate
    return np.where(size < CUSTOM_BYTES, np.minimum(np.minimum(one, two), nccl), nccl)


# -- experts' all-to-all ------------------------------------------------------------------------------------------


def _high_throughput(topology: Topology, span: Span, own: Floats, exchange: Exchange) -> Floats:
    """A token crosses the network once per node that wants it, and NVLink once per GPU."""
    rate = min(topology.inside(span).rate, HIGH_THROUGHPUT_RATE)
    inside = reached(span.ranks, exchange.top_k) * (span.ranks - 1) / span.ranks * own / rate
    outside = reached(span.nodes, exchange.top_k) * (span.nodes - 1) / span.nodes * own / topology.network(span).rate
    return HIGH_THROUGHPUT_SECONDS[exchange.step] + np.maximum(inside, outside)


def _low_latency(topology: Topology, span: Span, own: Floats, exchange: Exchange) -> Floats:
    """A token goes to each of its experts by itself, straight to its GPU."""
    near, far = _near_and_far(span)
    sent, link = own * exchange.top_k, topology.inside(span)
    inside = near * sent / min(link.rate, LOW_LATENCY_SHARE * link.rated)
    if span.nodes == 1:
        return LOW_LATENCY_SECONDS["inside"] + inside
    return LOW_LATENCY_SECONDS["between"] + np.maximum(inside, far * sent / topology.network(span).rate)


def reached(places: int, top_k: int) -> float:
    """How many of the places a token goes to, if each of its experts is equally likely to be in any."""
    return places * (1.0 - (1.0 - 1.0 / places) ** top_k)


_FORMULAS: dict[Kind, Callable[[Topology, Span, Floats], Floats]] = {
    "allreduce": _allreduce,
    "nccl_allreduce": nccl_allreduce,
    "allgather": lambda topology, span, size: _ring(topology, span, size, rounds=1),
    "reducescatter": lambda topology, span, size: _ring(topology, span, size, rounds=1),
    "alltoall": _alltoall,
    "broadcast": _broadcast,
    "send": _send,
}
