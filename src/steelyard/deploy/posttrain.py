"""What is common to post-training targets."""

from __future__ import annotations

from steelyard.deploy.parts import Note
from steelyard.errors import UserError
from steelyard.hardware import find_gpu
from steelyard.scenario.posttrain import BucketSpec, PosttrainScenario


def only_bucket(scenario: PosttrainScenario, target: str) -> BucketSpec:
    """The rollout engines, if they are all alike."""
    if len(scenario.rollout) > 1:
        degrees = ", ".join(str(bucket.tp) for bucket in scenario.rollout)
        raise UserError(
            f"rollout: engines of tp {degrees}; {target} has one degree for all of them: give one, such as "
            "--set 'rollout=[{tp: 2, replicas: 8}]'"
        )
    return scenario.rollout[0]


def gpus_per_node(scenario: PosttrainScenario) -> int:
    """GPUs of a node."""
    given = scenario.topology and scenario.topology.gpus_per_node
    return given or find_gpu(scenario.gpu).gpus_per_node


def spread(gpus: int, per_node: int, key: str) -> tuple[int, int]:
    """Nodes, and GPUs of each."""
    if gpus <= per_node:
        return 1, gpus
    if gpus % per_node:
        raise UserError(f"{key}: {gpus} GPUs do not fill nodes of {per_node}; use a multiple")
    return gpus // per_node, per_node


def decisions(scenario: PosttrainScenario, target: str) -> list[Note]:
    """What our decision core does, and the target's own loop does not."""
    notes = []
    if scenario.router != "least-outstanding":
        told = (
            f"{scenario.router} was simulated; {target} places turns by its own rule, or asks ours (docs/adapters.md)"
        )
        notes.append(Note("router", told))
    if scenario.planner != "given":
        notes.append(Note("planner", f"{target} does not move GPUs between rollout and training"))
    if scenario.pool != "none":
        notes.append(Note("pool", f"{target} has no hybrid pool"))
    if scenario.streaming:
        notes.append(Note("streaming", f"{target} trains when the batch is complete"))
    if scenario.training.packing != "balanced":
        notes.append(Note("training.packing", f"{target} balances samples over ranks"))
    if scenario.synchronous and scenario.staleness is not None:
        notes.append(Note("staleness", "samples that are carried over follow from the tail policy"))
    if scenario.topology is not None:
        notes.append(Note("topology", "place engines on machines that are wired as simulated"))
    notes.append(Note("trajectories", "name your data, tools and reward; lengths follow from them"))
    return notes
