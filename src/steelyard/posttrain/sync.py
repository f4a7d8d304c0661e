"""Seconds to move weights: from training to rollout engines, via disk, and between roles.

A move takes its bytes over the slowest shared link, plus start-up. Every GPU has its own link to the network. Jobs fill
whole nodes one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from steelyard.cost.collectives import Collectives
from steelyard.errors import UserError
from steelyard.hardware import Span, Topology
from steelyard.model import Layout, ModelSpec, Stage, parameters, weight_bytes
from steelyard.posttrain.training.exchanges import host_rate
from steelyard.posttrain.training.layout import FSDP, TrainLayout
from steelyard.posttrain.training.memory import WEIGHT_BYTES, stage_weights

BUCKET_BYTES = 512 << 20  # sent at a time, as frameworks do so that no GPU holds two copies of the weights
BUCKET_SECONDS = 2e-3  # to pack a bucket, notify engines and load it; an assumption


@dataclass(frozen=True)
class RolloutEngines:
    """Engines of one kind that receive weights."""

    replicas: int
    layout: Layout = field(default_factory=Layout)

    @property
    def gpus(self) -> int:
        return self.replicas * self.layout.gpus


@dataclass(frozen=True)
class Disk:
    """A file system shared by all nodes: bytes/s of all nodes together, and the limit of one node."""

    write: float
    read: float
    node_write: float = math.inf
    node_read: float = math.inf
    latency: float = 0.0  # seconds until other nodes can open a file that one node wrote

    def writing(self, size: float, nodes: int) -> float:
        """Seconds until ``nodes`` nodes have written ``size`` bytes in all, in equal parts."""
        return size / min(self.write, nodes * self.node_write)

    def reading(self, size: float, nodes: int) -> float:
        """Seconds until each of ``nodes`` nodes has read ``size`` bytes."""
        return size / min(self.read / nodes, self.node_read)


@dataclass(frozen=True)
class Startup:
    """Seconds of start-up, independent of bytes. Measure them where they matter.

    ``engine`` is a round figure for processes, graphs and warm-up: vLLM 0.26 on an H200 took 58 s (Llama 3.1 8B) to
    111 s (Qwen3 30B-A3B), loading weights included. The other two are assumptions.
    """

    engine: float = 60.0  # a new serving engine, without its weights
    wake: float = 1.0  # a sleeping engine
    groups: float = 5.0  # new communication groups of a training job


@dataclass(frozen=True)
class MoveTime:
    """Seconds of a move by part, and its total bytes."""

    parts: Mapping[str, float]
    bytes: float

    @property
    def seconds(self) -> float:
        """The sum of all parts, which run one after the other."""
        return sum(self.parts.values())


def broadcast(
    model: ModelSpec, topology: Topology, layout: TrainLayout, rollouts: Sequence[RolloutEngines]
) -> MoveTime:
    """One training replica gathers the weights bucket by bucket. The first rank of each stage sends every bucket to all
    rollout GPUs, stage after stage, and each of them keeps its shard.

    All rollout GPUs of a node receive all weights, over the node's links or their own links to the network.
    """
    size, receivers = whole_weights(model), _receivers(rollouts)
    buckets = math.ceil(size / BUCKET_BYTES)
    span = across(topology, 1, receivers)
    seconds = Collectives(topology).seconds("broadcast", span, np.array([size / buckets]))[0]
    return MoveTime(
        {
            "gather": sum(_gathered(topology, layout, stage) for stage in layout.stages(model)),
            "broadcast": buckets * float(seconds),
            "buckets": buckets * BUCKET_SECONDS,
        },
        size * receivers,
    )


def point_to_point(
    model: ModelSpec, topology: Topology, layout: TrainLayout, rollouts: Sequence[RolloutEngines]
) -> MoveTime:
    """Every rollout GPU fetches its own shard from the training replicas.

    Training GPUs send equal shares. The bottleneck is the side with more bytes per link, or oversubscribed uplinks.
    FSDP shards are read in place.
    """
    own = [(group, weight_bytes(plain_weights(model), tp=group.layout)) for group in rollouts]
    total = float(sum(group.gpus * size for group, size in own))
    largest = max(size for _, size in own)
    receivers = _receivers(rollouts)
    link = topology.network(across(topology, layout.gpus, receivers))
    seconds = max(largest, total / layout.gpus) / link.rate + link.latency
    buckets = math.ceil(largest / BUCKET_BYTES)
    return MoveTime({"transfer": seconds, "buckets": buckets * BUCKET_SECONDS}, total)


def via_disk(
    model: ModelSpec, topology: Topology, layout: TrainLayout, rollouts: Sequence[RolloutEngines], disk: Disk
) -> MoveTime:
    """One training replica writes the weights, every rollout node reads them once and its GPUs load their shards."""
    size = whole_weights(model)
    nodes = _nodes(topology, _receivers(rollouts))
    loaded = max(weight_bytes(plain_weights(model), tp=group.layout) for group in rollouts) / host_rate(topology.gpu)
    return MoveTime(
        {
            "write": disk.writing(size, _nodes(topology, layout.replica_gpus)) + disk.latency,
            "read": disk.reading(size, nodes),
            "load": loaded,
        },
        size * (1 + nodes),
    )


def reshard(model: ModelSpec, topology: Topology, layout: TrainLayout, engine: Layout) -> MoveTime:
    """A co-located engine on the training GPUs: each GPU assembles its rollout shard from training shards.

    Missing parts come over the links of the group that holds them. FSDP ranks gather all weights, as frameworks do
    layer by layer; others gather over tensor-parallel ranks and pipeline stages.
    """
    if layout.gpus % engine.gpus:
        raise UserError(f"weight sync: {layout.gpus} training GPUs cannot be divided into engines of {engine.gpus}")
    plain, seconds = plain_weights(model), 0.0
    held = float(WEIGHT_BYTES * max(stage_weights(stage, layout).total for stage in layout.stages(plain)))
    if layout.zero >= FSDP:
        seconds += _gather(topology, topology.span(layout.shards, stride=layout.tp), held)
    wanted = float(weight_bytes(plain, tp=engine))
    if wanted > held:  # the rest is on other tensor-parallel ranks and stages of the same replica
        ranks = min(layout.tp * layout.pp, math.ceil(wanted / held))
        stride = 1 if layout.tp > 1 else layout.shards
        seconds += _gather(topology, topology.span(ranks, stride=stride), wanted)
    return MoveTime({"gather": seconds}, layout.gpus * wanted)


def sleep(topology: Topology, weights: float, kv: float = 0.0) -> MoveTime:
    """A co-located engine frees its GPU: weights, and KV if it is kept, go to the host. Bytes are those of one GPU; all
    GPUs of a node copy at once, each over its own PCIe link."""
    return MoveTime({"offload": (weights + kv) / host_rate(topology.gpu)}, weights + kv)


def wake(topology: Topology, weights: float, kv: float = 0.0, startup: Startup | None = None) -> MoveTime:
    """The reverse of `sleep`. After a weight sync only memory has to be mapped: pass no weights then."""
    startup = startup or Startup()
    return MoveTime({"load": (weights + kv) / host_rate(topology.gpu), "wake": startup.wake}, weights + kv)


def whole_weights(model: ModelSpec) -> float:
    """Bytes of all weights in 16 bits, as they are sent."""
    return float(parameters(model).total * WEIGHT_BYTES)


def plain_weights(model: ModelSpec) -> ModelSpec:
    """The model with 16-bit weights, which are sent and served."""
    return replace(model, quantization=None)


def _receivers(rollouts: Sequence[RolloutEngines]) -> int:
    receivers = sum(group.gpus for group in rollouts)
    if not receivers:
        raise UserError("weight sync: there are no rollout engines to send weights to")
    return receivers


def _nodes(topology: Topology, gpus: int) -> int:
    return -(-gpus // topology.gpus_per_node)


def across(topology: Topology, senders: int, receivers: int) -> Span:
    """A group of senders and receivers in separate nodes."""
    nodes = _nodes(topology, senders) + _nodes(topology, receivers)
    leaves = -(-nodes // topology.nodes_per_leaf)
    most = min(topology.gpus_per_node, max(senders, receivers))
    return Span(senders + receivers, nodes, leaves, 1, most)


def _gathered(topology: Topology, layout: TrainLayout, stage: Stage) -> float:
    """Seconds for one replica to gather a stage's weights: over FSDP shards first, then over tensor-parallel ranks, and
    for experts over expert-parallel ranks."""
    own = stage_weights(stage, layout)
    weights_by_kind = (
        (own.dense, layout.tp, layout.shards),
        (own.experts, max(layout.tp, layout.ep), layout.expert_shards),
    )
    seconds = 0.0
    for weights, ranks, shards in weights_by_kind:
        size = float(WEIGHT_BYTES * weights)
        seconds += _gather(topology, topology.span(ranks), size * ranks)
        if layout.zero >= FSDP:
            seconds += _gather(topology, topology.span(shards, stride=ranks), size)
    return seconds


def _gather(topology: Topology, span: Span, size: float) -> float:
    return float(Collectives(topology).seconds("allgather", span, np.array([size]))[0])
