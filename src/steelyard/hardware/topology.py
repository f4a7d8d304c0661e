"""Topology: nodes with fast links inside, and a network between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from steelyard.hardware.gpu import Gpu
from steelyard.scenario.topology import TopologySpec

T = TypeVar("T")
LinkKind = Literal["nvlink", "pcie", "host", "network"]

# Share of a link's rated bandwidth that transfers reach.
# - nvlink: NCCL's tuner assumes 20.0 to 20.6 of the 25 GB/s of one (40.1 of 50 on Blackwell).
# - pcie, straight into the other GPU's memory: NVIDIA's tables have pairs at 37 to 42 of 64 GB/s (RTX PRO 6000) and at
#   20 of 32 (L40S); two RTX PRO 6000 gather 35 with NCCL (FlashInfer pull request 5023) and read 43 (vLLM issue 56128).
# - host, through the host's memory: four RTX 4090 add up at 12.8 of 32 (tinygrad/open-gpu-kernel-modules, pull request
#   22).
# - network: 400 Gb/s ports carry 44 to 46 of 50 GB/s in DeepEP's published all-to-alls.
SHARES: dict[LinkKind, float] = {"nvlink": 0.80, "pcie": 0.60, "host": 0.40, "network": 0.90}
# The same where data flows one way only, between two GPUs: a pair of RTX PRO 6000 writes 53 to 56 of 64 GB/s over PCIe
# (voipmonitor/rtx6kpro), and a pair broadcasts and sums 10.3 and 9.6 of 15.75 through the host's memory, where an
# all-reduce reaches 3.9 each way (NVIDIA/nccl issue 384).
ONE_WAY: dict[LinkKind, float] = {**SHARES, "pcie": 0.85, "host": 0.63}
CROWDED_PCIE = 2 / 3  # of it when more than two GPUs share the host's bridges: 25 of 64 GB/s among four and eight
# The most that NCCL sends through a host's memory, whatever the link: the mean of two hosts. Pairs of RTX PRO 6000 add
# up at 15.3 GB/s with vLLM 0.19, SGLang 0.5.10 and TensorRT-LLM 1.3.0rc10 (NVIDIA's tables), eight on two sockets at
# 22.2 (voipmonitor/rtx6kpro). NCCL up to 2.28 expects 16 of any AMD processor, and opens no more channels than that.
MOST_THROUGH_HOST = 18.7e9
# Seconds until the first bytes arrive: the hop latencies of NCCL's tuner for its low-latency protocol.
LATENCIES: dict[LinkKind, float] = {"nvlink": 0.6e-6, "pcie": 1.0e-6, "host": 1.0e-6, "network": 2.7e-6}


@dataclass(frozen=True)
class GpuLink:
    """One GPU's link to others: rated bytes/s per direction, and seconds until the first bytes arrive."""

    kind: LinkKind
    rated: float
    latency: float

    @property
    def rate(self) -> float:
        """Bytes/s per direction that transfers reach."""
        reached = self.rated * SHARES[self.kind]
        return min(reached, MOST_THROUGH_HOST) if self.kind == "host" else reached

    @property
    def one_way(self) -> float:
        """The same while nothing flows the other way."""
        return self.rated * ONE_WAY[self.kind]


@dataclass(frozen=True)
class Span:
    """The extent of a group of ranks: its nodes, their leaves, the fewest and the most ranks in one node."""

    ranks: int
    nodes: int
    leaves: int
    fewest: int
    most: int


@dataclass(frozen=True)
class Topology:
    """Nodes of one GPU type. Ranks fill one node after the other, nodes one leaf of the network after the other.

    Within a leaf every GPU has its whole NIC (a rail-optimised network has one switch per rail there). Traffic between
    leaves shares the uplinks, one for every ``oversubscription`` ports. Without ``nodes_per_leaf`` every node is its
    own leaf.
    """

    gpu: Gpu
    gpus_per_node: int
    peer: GpuLink
    nic: GpuLink
    oversubscription: float = 1.0
    nodes_per_leaf: int = 1

    def span(self, ranks: int, first: int = 0, stride: int = 1) -> Span:
        """The extent of ``ranks`` ranks, ``stride`` apart, from the fleet's rank ``first`` on."""
        nodes, counts = np.unique((first + stride * np.arange(ranks)) // self.gpus_per_node, return_counts=True)
        leaves = len(np.unique(nodes // self.nodes_per_leaf))
        return Span(ranks, len(nodes), leaves, int(counts.min()), int(counts.max()))

    def inside(self, span: Span) -> GpuLink:
        """One GPU's link to the others of its node while all of the group send."""
        if self.peer.kind != "pcie" or span.most <= 2:
            return self.peer
        return GpuLink("pcie", self.peer.rated * CROWDED_PCIE, self.peer.latency)

    def network(self, span: Span) -> GpuLink:
        """One GPU's link to other nodes while all of the group send."""
        if span.leaves == 1:
            return self.nic
        return GpuLink("network", self.nic.rated / self.oversubscription, self.nic.latency)

    def link(self, span: Span) -> GpuLink:
        """The link between two ends of a transfer in a group: the node's, or the network."""
        return self.inside(span) if span.nodes == 1 else self.network(span)

    @property
    def usual_node(self) -> bool:
        """Whether nodes are wired as those that measured times come from: as in the catalog, with peer access."""
        return self.peer == _peer(self.gpu, peer_access=True)


def topology_of(gpu: Gpu, spec: TopologySpec | None = None) -> Topology:
    """A fleet's topology: the scenario's values, and the GPU's usual node for the rest."""
    spec = spec or TopologySpec()
    peer = _peer(gpu, spec.peer_access) if spec.nvlink is None else GpuLink("nvlink", spec.nvlink, LATENCIES["nvlink"])
    return Topology(
        gpu=gpu,
        gpus_per_node=spec.gpus_per_node or gpu.gpus_per_node,
        peer=GpuLink(peer.kind, peer.rated, _given(spec.nvlink_latency, peer.latency)),
        nic=GpuLink("network", _given(spec.nic, gpu.nic_bandwidth), _given(spec.nic_latency, LATENCIES["network"])),
        oversubscription=spec.oversubscription,
        nodes_per_leaf=spec.nodes_per_leaf,
    )


def slower(one: GpuLink, other: GpuLink) -> GpuLink:
    """The link between GPUs of two kinds: no faster than either end."""
    by_rate = min(one, other, key=lambda link: link.rate)
    return GpuLink(by_rate.kind, by_rate.rated, max(one.latency, other.latency))


def _peer(gpu: Gpu, peer_access: bool | None = None) -> GpuLink:
    """The link between two GPUs of a node. Without NVLink it depends on whether they reach each other's memory."""
    kind: LinkKind = "nvlink" if gpu.nvlink_bandwidth else "pcie" if _given(peer_access, gpu.peer_access) else "host"
    return GpuLink(kind, gpu.peer_bandwidth, LATENCIES[kind])


def _given(value: T | None, usual: T) -> T:
    return usual if value is None else value
