"""Wide engines that a tail policy may merge a scenario's engines into: which, and what a change takes."""

from __future__ import annotations

from steelyard.balance.tail import Merge, WideReplicas
from steelyard.hardware import Topology
from steelyard.model import Layout, ModelSpec
from steelyard.posttrain.changes import engines_relaid
from steelyard.posttrain.roles import first_places, merged_blocks
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.scenario.rollouts import TrajectorySpec
from steelyard.scenario.tails import ReconfigureSpec


def wide_replicas(setup: PosttrainSetup, spec: ReconfigureSpec) -> WideReplicas:
    """What the core is told of them. Their numbers follow those of the scenario's engines."""
    scenario, kind = setup.scenario, setup.kinds[spec.tp]
    degrees = [bucket.tp for bucket in scenario.rollout for _ in range(bucket.replicas)]
    places, _ = first_places(degrees, scenario.training.gpus, scenario.gpus, scenario.mode == "colocated")
    blocks = merged_blocks(places, spec.tp, setup.topology.gpus_per_node)
    narrowest = setup.kinds[min(degrees)]
    rate = narrowest.tp * node_rate(setup.topology, spec.tp)
    asked = scenario.trajectories
    budget = asked.budget.context if isinstance(asked, TrajectorySpec) else kind.limits.max_model_len
    return WideReplicas(
        tp=spec.tp,
        merges=tuple(Merge(len(degrees) + index, block) for index, block in enumerate(blocks)),
        seats=kind.limits.max_num_seqs,
        tokens=kind.limits.room,
        seconds=change_seconds(setup.model, setup.topology, spec.tp, spec),
        move=narrowest.kv_bytes / rate,
        longest=min(budget, kind.limits.longest()),
    )


def change_seconds(model: ModelSpec, topology: Topology, tp: int, spec: ReconfigureSpec) -> float:
    """Seconds from the stop of the engines of one layout until those of degree ``tp`` run on the same GPUs."""
    return engines_relaid(model, topology, Layout(tp=tp), spec.tp, spec.start).seconds


def node_rate(topology: Topology, gpus: int) -> float:
    """Bytes/s between GPUs of an engine, each way."""
    return topology.inside(topology.span(gpus)).rate
