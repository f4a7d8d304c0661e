"""Seconds for GPUs to change between training and rollout: to fetch, to send and to start."""

from __future__ import annotations

from math import ceil

from steelyard.errors import UserError
from steelyard.hardware import Topology
from steelyard.model import Layout, ModelSpec, weight_bytes
from steelyard.posttrain.sync import BUCKET_BYTES, BUCKET_SECONDS, MoveTime, Startup, across, plain_weights
from steelyard.posttrain.training.layout import TrainLayout
from steelyard.posttrain.training.memory import stage_weights


def replica_to_training(
    model: ModelSpec, topology: Topology, layout: TrainLayout, startup: Startup | None = None
) -> MoveTime:
    """A data-parallel replica joins a job, which then has ``layout``. Its GPUs fetch weights and their shards of
    optimiser states from the other ranks, each over its own link to the network."""
    startup = startup or Startup()
    _check_others(layout)
    own = _held(model, layout)
    link = topology.network(across(topology, layout.gpus - layout.replica_gpus, layout.replica_gpus))
    return MoveTime({"groups": startup.groups, "fetch": own / link.rate + link.latency}, layout.replica_gpus * own)


def replica_to_rollout(
    model: ModelSpec,
    topology: Topology,
    layout: TrainLayout,
    engine: Layout,
    startup: Startup | None = None,
    *,
    asleep: bool = True,
) -> MoveTime:
    """A data-parallel replica leaves a job of ``layout`` and becomes engines. Its optimiser shards go to the other
    replicas; engines wake or start, and fetch the current weights."""
    startup = startup or Startup()
    _check_others(layout)
    if layout.replica_gpus % engine.gpus:
        raise UserError(f"weight sync: {layout.replica_gpus} GPUs cannot be divided into engines of {engine.gpus}")
    unshared = _unshared_bytes(model, layout)
    stay = layout.gpus - layout.replica_gpus
    link = topology.network(across(topology, stay, layout.replica_gpus))
    begun = engines_begin(model, topology, stay, layout.replica_gpus, engine, startup, asleep=asleep)
    parts = {"hand_over": unshared / link.rate + link.latency, **begun.parts}
    return MoveTime(parts, layout.replica_gpus * unshared + begun.bytes)


def engines_begin(
    model: ModelSpec,
    topology: Topology,
    trainers: int,
    gpus: int,
    engine: Layout,
    startup: Startup | None = None,
    *,
    asleep: bool = True,
) -> MoveTime:
    """Engines wake or start on ``gpus`` GPUs, each of which fetches its weights from the ``trainers`` GPUs."""
    startup = startup or Startup()
    link = topology.network(across(topology, trainers, gpus))
    weights = float(weight_bytes(plain_weights(model), tp=engine))
    parts = {
        "engine": startup.wake if asleep else startup.engine,
        "fetch": weights / link.rate + link.latency,
    }
    return MoveTime(parts, gpus * weights)


def engines_relaid(model: ModelSpec, topology: Topology, engine: Layout, gpus: int, start: float) -> MoveTime:
    """Engines of another layout start on the same ``gpus`` GPUs of a node, which takes ``start`` seconds. Each GPU
    fetches its shard of the weights from the others, which send equal shares."""
    weights = float(weight_bytes(plain_weights(model), tp=engine))
    link = topology.inside(topology.span(gpus))
    buckets = ceil(weights / BUCKET_BYTES)
    parts = {"engine": start, "fetch": weights / link.rate + link.latency, "buckets": buckets * BUCKET_SECONDS}
    return MoveTime(parts, gpus * weights)


def relayout(
    model: ModelSpec, topology: Topology, now: TrainLayout, then: TrainLayout, startup: Startup | None = None
) -> MoveTime:
    """A job changes its layout. Communication groups are created again, and each GPU fetches its shards of weights and
    optimiser states from the GPUs that had them, which send equal shares."""
    startup = startup or Startup()
    own = _held(model, then)
    link = topology.network(across(topology, now.gpus, then.gpus))
    seconds = max(own, then.gpus * own / now.gpus) / link.rate + link.latency
    return MoveTime({"groups": startup.groups, "fetch": seconds}, then.gpus * own)


def _check_others(layout: TrainLayout) -> None:
    if layout.replicas < 2:
        raise UserError(f"weight sync: {layout} has one copy of the model, so none can join or leave")


def _held(model: ModelSpec, layout: TrainLayout) -> float:
    """Bytes of weights and optimiser states on the fullest GPU of a job, which all others wait for."""
    return max(sum(stage_weights(stage, layout).kept(layout)) for stage in layout.stages(model))


def _unshared_bytes(model: ModelSpec, layout: TrainLayout) -> float:
    """Bytes of optimiser states that only one GPU of a job has; 0 if states are not sharded."""
    return max(stage_weights(stage, layout).kept(layout)[1] for stage in layout.stages(model)) if layout.zero else 0.0
