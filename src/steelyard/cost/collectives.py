"""Communication inside a group of GPUs: seconds by bytes, ranks and topology.

Measured tables are used where there are any. The rest is start-up time plus bytes over the slowest link. The constants
are those of NCCL's own tuner and of published measurements; none is fitted to one capture. GPUs without NVLink send
over PCIe, straight to each other or through the host's memory (`steelyard.hardware.topology`). What ``size`` counts:

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
from steelyard.hardware import GpuLink, Span, Topology
from steelyard.model import Collective

Kind = Literal["allreduce", "nccl_allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "send"]
Step = Literal["dispatch", "combine"]
Mode = Literal["naive", "allgather_reducescatter", "high_throughput", "low_latency"]


@dataclass(frozen=True)
class Wire:
    """One of NCCL's protocols: start-up time, time per hop beyond the link's own, and the share of the link's rate.

    ``most`` bounds what a node sends to others, in bytes/s.
    """

    start: float
    hop: Mapping[str, float]
    share: float
    most: float = math.inf


# NCCL 2.28's tuner. Low latency sends a flag with every 8 bytes (141 of 360 GB/s on Hopper; 35 to 45 GB/s from a node),
# its 128-byte form needs NVLink, "simple" waits for whole chunks. A pair that adds up through the host's memory uses
# "simple" even for 4 KiB: 19.6 us with vLLM 0.19, SGLang 0.5.10 and TensorRT-LLM 1.3.0rc10 on two RTX PRO 6000
# (NVIDIA's tables).
LOW_LATENCY = Wire(6.6e-6, {"nvlink": 0.0, "pcie": 0.0, "host": 0.0, "network": 0.0}, 0.39, most=40e9)
LINES = Wire(14.0e-6, {"nvlink": 1.3e-6, "network": 1.3e-6}, 0.92)
SIMPLE = Wire(8.4e-6, {"nvlink": 2.8e-6, "pcie": 4.7e-6, "host": 4.7e-6, "network": 11.3e-6}, 1.0)
TREE_SHARE = 0.92  # of a ring's rate, the same tuner
# In a ring a rank sends its chunk, passes on those of the others, and then receives the last one. An all-gather or a
# reduce-scatter has such a last step per round, an all-reduce, whose rate links have here, one per two rounds. As if
# 0.6 of it passed while nothing is sent: they reach 0.82, 0.90 and 0.95 of an all-reduce's bytes/s with 2, 4 and 8
# ranks (means of NVIDIA's tables for A100, H100, B200, L40S and RTX PRO 6000, 128 MiB, NCCL 2.27 to 2.29). A pair
# through the host's memory reaches 0.81 (NVIDIA/nccl issue 384).
LAST_STEP = 0.6
NVLS_SECONDS = 25e-6  # until reductions inside the switch run, the same tuner
NVLS_TRAFFIC = 1.25  # 1 + 1/ranks crossings of each link per byte; that of four ranks, so that more are never faster

# vLLM's own all-reduce inside a node: every GPU reads all others (one shot), or sums a part and reads the other sums
# (two shots, a barrier more). Starts as replayed from a graph on Hopper: 4.2 to 5.3 and 8 to 13 us; A100, B200 and
# GB200 take 5 to 8 and 10 to 21; pairs over PCIe take 4.3 (RTX PRO 6000) and 5.4 (L40S).
CUSTOM_BYTES = 8 << 20  # from here on vLLM uses NCCL
CUSTOM_RANKS = (2, 4, 6, 8)
ONE_SHOT_SECONDS = 4.5e-6
TWO_SHOT_SECONDS = 8.5e-6

# DeepEP. Low latency: kernels take 12 us for one token inside a node (22 on B200); published times for 16 to 256 ranks
# extrapolate to 30 us at no bytes. They store token by token, which reaches 0.49 to 0.68 of an NVLink's rated bytes: a
# mean of 0.58 over both steps on H800, H200 and B200. High throughput: the start is what vLLM waits for few tokens (its
# dispatch has the host read how many come). Then 20 multiprocessors copy 14 to 18 GB/s each on H100, H200 and B200; the
# rate is linear in their number from 4 to 24.
LOW_LATENCY_SECONDS = {"inside": 12e-6, "between": 30e-6}
LOW_LATENCY_SHARE = 0.58
HIGH_THROUGHPUT_SECONDS: dict[Step, float] = {"dispatch": 250e-6, "combine": 80e-6}
HIGH_THROUGHPUT_RATE = 20 * 15e9


@dataclass(frozen=True)
class ExpertExchange:
    """Dispatch of tokens to their experts, or combine: one row of bytes per token, to ``top_k`` of the experts."""

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

    def exchange(self, exchange: ExpertExchange, span: Span, tokens: Floats) -> Estimate | None:
        """Seconds by tokens of each rank."""
        ...


@dataclass(frozen=True)
class Collectives:
    """Times of collectives. A plain number of ranks means a group that starts at a node's first GPU."""

    topology: Topology
    tables: Tables | None = None

    def seconds(self, kind: Kind, ranks: int | Span, size: Floats) -> Floats:
        """Seconds of a collective for each number of bytes."""
        return self.estimate(kind, ranks, size).seconds

    def estimate(self, kind: Kind, ranks: int | Span, size: Floats) -> Estimate:
        """The same with the provenance of each."""
        span = self._span(ranks)
        tables = self._tables(span)
        measured = tables.collective(kind, span, size) if tables else None
        return measured or _analytic(span, size, _FORMULAS[kind](self.topology, span, size))

    def operator(self, operator: Collective, rows: Floats) -> Estimate:
        """A collective of a step, by its rows; one with a mode is an all-to-all of experts."""
        exchange, span = exchange_of(operator), self.topology.span(operator.ranks, operator.first, operator.stride)
        if exchange is None:
            return self.estimate(operator.kind, span, rows * operator.bytes)
        return self.exchange(exchange, span, rows)

    def exchange(self, exchange: ExpertExchange, ranks: int | Span, tokens: Floats) -> Estimate:
        """An all-to-all of experts, by the tokens of each rank."""
        span = self._span(ranks)
        own, dispatch = tokens * exchange.row_bytes, exchange.step == "dispatch"
        if exchange.mode == "allgather_reducescatter":
            return self.estimate("allgather" if dispatch else "reducescatter", span, own * span.ranks)
        if exchange.mode == "naive" and dispatch:  # ranks send all their tokens one after the other
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


def exchange_of(operator: Collective) -> ExpertExchange | None:
    """The all-to-all of experts that a collective stands for, if it is one."""
    if operator.mode is None:
        return None
    step: Step = "dispatch" if operator.name == "dispatch" else "combine"
    return ExpertExchange(operator.mode, step, operator.bytes, operator.top_k, operator.experts)


def multicast(link: GpuLink, senders: int, receivers: int, size: Floats) -> Floats:
    """Every sender sends ``size`` bytes to every receiver; the side with fewer GPUs is the bottleneck."""
    return np.where(size > 0, _direct(link, max(senders, receivers) * size), 0.0)


def _analytic(span: Span, size: Floats, seconds: Floats) -> Estimate:
    return Estimate.all_of(np.where((size > 0) & (span.ranks > 1), seconds, 0.0), ANALYTIC)


# -- NCCL ---------------------------------------------------------------------------------------------------------


def nccl_allreduce(topology: Topology, span: Span, size: Floats) -> Floats:
    """The fastest of NCCL's algorithms for each size, which is what its tuner chooses."""
    ways = [_ring(topology, span, size, rounds=2), _tree(topology, span, size)]
    if topology.gpu.nvls_share and span.fewest > 1:
        ways.append(_in_switch(topology, span, size))
    return reduce(np.minimum, ways)


def _ring(topology: Topology, span: Span, size: Floats, rounds: int) -> Floats:
    """A ring over all ranks: one round to reduce or gather, two for both."""
    between = rounds * (span.nodes - 1)
    inside = rounds * (span.ranks - 1) - between
    moved = rounds * (span.ranks - 1) / span.ranks * size
    if rounds == 1:
        steps = max(1, span.ranks - 1)
        moved = moved * (1 + LAST_STEP / steps) / (1 + LAST_STEP / (2 * steps))
    return _fastest(topology, span, inside, between, moved)


def _tree(topology: Topology, span: Span, size: Floats) -> Floats:
    """Up and down a chain inside each node and a binary tree over the nodes."""
    inside = 2 * (span.most - 1)
    between = 2 * 2 * math.ceil(math.log2(span.nodes))
    return _fastest(topology, span, inside, between, 2.0 * size / TREE_SHARE)


def _in_switch(topology: Topology, span: Span, size: Floats) -> Floats:
    """NVLink switches reduce inside nodes (NVLS) while a tree over the nodes does the rest."""
    moved = NVLS_TRAFFIC * size / (topology.peer.rate * topology.gpu.nvls_share)
    if span.nodes == 1:
        return NVLS_SECONDS + moved
    network = topology.network(span)
    levels = 2 * math.ceil(math.log2(span.nodes)) * (network.latency + SIMPLE.hop["network"])
    return NVLS_SECONDS + levels + np.maximum(moved, 2.0 * size / (span.fewest * network.rate))


def _fastest(topology: Topology, span: Span, inside: int, between: int, moved: Floats) -> Floats:
    """The fastest protocol for ``inside`` and ``between`` hops and ``moved`` bytes over the slowest link."""
    near, network = topology.inside(span), topology.network(span)
    ways = []
    for wire in (LOW_LATENCY, LINES, SIMPLE):
        if near.kind not in wire.hop or (near.kind == "host" and span.ranks == 2 and wire is LOW_LATENCY):
            continue
        start = wire.start + inside * (near.latency + wire.hop[near.kind])
        start += between * (network.latency + wire.hop["network"])
        rate = near.rate * wire.share if span.most > 1 else math.inf
        if span.nodes > 1:
            rate = min(rate, span.fewest * network.rate * wire.share, wire.most)
        ways.append(start + moved / rate)
    return reduce(np.minimum, ways)


def _broadcast(topology: Topology, span: Span, size: Floats) -> Floats:
    """Along a chain of ranks. That of a pair flows one way only."""
    between = span.nodes - 1
    if span.ranks == 2 and not between:
        near = topology.inside(span)
        size = size * (near.rate / near.one_way)
    return _fastest(topology, span, span.ranks - 1 - between, between, size)


def _alltoall(topology: Topology, span: Span, size: Floats) -> Floats:
    """All ranks send to all others at once: over the node's links inside it, through each NIC to other nodes."""
    near, far = _near_and_far(span)
    inside = _direct(topology.inside(span), near * size)
    return inside if span.nodes == 1 else np.maximum(inside, _direct(topology.network(span), far * size))


def _send(topology: Topology, span: Span, size: Floats) -> Floats:
    return _direct(topology.link(span), size)


def _direct(link: GpuLink, size: Floats) -> Floats:
    """One GPU's bytes over one link, point to point."""
    ways = (
        wire.start + link.latency + wire.hop[link.kind] + size / (link.rate * wire.share)
        for wire in (LOW_LATENCY, SIMPLE)
    )
    return reduce(np.minimum, ways)


def _near_and_far(span: Span) -> tuple[float, float]:
    """Of what a rank sends evenly to all, the largest share to others of its node, and to other nodes."""
    return (span.most - 1) / span.ranks, (span.ranks - span.fewest) / span.ranks


# -- vLLM's all-reduce --------------------------------------------------------------------------------------------


def _allreduce(topology: Topology, span: Span, size: Floats) -> Floats:
    """vLLM's own kernels for small tensors inside a node, NCCL for all others.

    The kernels read other GPUs' memory, so they need NVLink, or a pair that has access to each other's over PCIe.
    """
    nccl, near = nccl_allreduce(topology, span, size), topology.inside(span)
    reached = near.kind == "nvlink" or (near.kind == "pcie" and span.ranks == 2)
    if span.nodes > 1 or span.ranks not in CUSTOM_RANKS or not reached:
        return nccl
    one = ONE_SHOT_SECONDS + (span.ranks - 1) * size / near.rate
    two = TWO_SHOT_SECONDS + 2.0 * (span.ranks - 1) / span.ranks * size / near.rate
    return np.where(size < CUSTOM_BYTES, np.minimum(np.minimum(one, two), nccl), nccl)


# -- experts' all-to-all ------------------------------------------------------------------------------------------


def _high_throughput(topology: Topology, span: Span, own: Floats, exchange: ExpertExchange) -> Floats:
    """A token crosses the network once per node with one of its experts, and NVLink once per GPU."""
    rate = min(topology.inside(span).rate, HIGH_THROUGHPUT_RATE)
    inside = reached(span.ranks, exchange.top_k) * (span.ranks - 1) / span.ranks * own / rate
    outside = reached(span.nodes, exchange.top_k) * (span.nodes - 1) / span.nodes * own / topology.network(span).rate
    return HIGH_THROUGHPUT_SECONDS[exchange.step] + np.maximum(inside, outside)


def _low_latency(topology: Topology, span: Span, own: Floats, exchange: ExpertExchange) -> Floats:
    """A token is sent to each of its experts separately, directly to the expert's GPU."""
    near, far = _near_and_far(span)
    sent, link = own * exchange.top_k, topology.inside(span)
    inside = near * sent / min(link.rate, LOW_LATENCY_SHARE * link.rated)
    if span.nodes == 1:
        return LOW_LATENCY_SECONDS["inside"] + inside
    return LOW_LATENCY_SECONDS["between"] + np.maximum(inside, far * sent / topology.network(span).rate)


def reached(places: int, top_k: int) -> float:
    """Expected number of distinct places among ``places`` that a token's ``top_k`` experts are in, chosen evenly."""
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
