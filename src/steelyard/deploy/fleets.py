"""What is common to the fleets of all serving targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from steelyard.deploy.names import deployed_name
from steelyard.deploy.parts import Note, slugs
from steelyard.errors import UserError
from steelyard.hardware import Gpu, find_gpu
from steelyard.scenario import EngineSpec, ModelRef, PoolSpec, Scenario


@dataclass(frozen=True)
class EngineGroup:
    """A pool with all that its engines are started with."""

    pool: PoolSpec
    name: str  # fit for files and hosts
    model: ModelRef
    deployed: str
    engine: EngineSpec
    gpu: Gpu
    gpus_per_node: int
    base_dir: Path

    @property
    def gpus(self) -> int:
        """GPUs of one engine."""
        return self.pool.tp * self.pool.pp * self.pool.dp

    @property
    def nodes(self) -> int:
        """Nodes of one engine."""
        return -(-self.gpus // self.gpus_per_node)


def groups(scenario: Scenario, target: str) -> list[EngineGroup]:
    """The pools. Refuses what no target can run."""
    fleet = scenario.fleet
    if any(pool.role in ("attention", "ffn") for pool in fleet.pools):
        raise UserError(
            f"fleet.pools: attention/FFN disaggregation cannot be deployed with {target}; simulate pools of role "
            "serve, or prefill and decode"
        )
    found = []
    for pool, name in zip(fleet.pools, slugs([pool.name for pool in fleet.pools]), strict=True):
        gpu, model = find_gpu(pool.gpu), scenario.model_of(pool)
        per_node = (fleet.topology and fleet.topology.gpus_per_node) or gpu.gpus_per_node
        engine = scenario.engine_of(pool)
        found.append(
            EngineGroup(pool, name, model, deployed_name(model.config), engine, gpu, per_node, scenario.base_dir)
        )
        _check_nodes(found[-1], target)
    return found


def by_model(found: list[EngineGroup]) -> Iterator[tuple[str, list[EngineGroup]]]:
    """The pools of each model, in the order in which models are named first."""
    names = list(dict.fromkeys(group.model.called for group in found))
    for name in names:
        yield name, [group for group in found if group.model.called == name]


def fleet_notes(scenario: Scenario, first_token: str) -> list[Note]:
    """What no target is told of a fleet. ``first_token`` is the engine from which the target's first token comes."""
    fleet, notes = scenario.fleet, []
    if fleet.topology is not None:
        notes.append(Note("fleet.topology", "place engines on machines that are wired as simulated"))
    for i, pool in enumerate(fleet.pools):
        if pool.autoscale is not None:
            key, count = f"fleet.pools[{i}].autoscale", pool.replicas
            notes.append(Note(key, f"{count} replicas are started, and none added or removed; set your autoscaler up"))
    if fleet.pool_router is not None:
        notes.append(Note("fleet.pool_router", f"{fleet.pool_router} between pools is left to the target's router"))
    if fleet.of_role("prefill"):
        if fleet.transfer.layerwise:
            notes.append(Note("fleet.transfer.layerwise", "the KV cache is sent after prefill, not layer by layer"))
        if fleet.transfer.first_token != first_token:
            told = f"the first token comes from the {first_token} engine"
            notes.append(Note("fleet.transfer.first_token", told))
    return notes


def _check_nodes(group: EngineGroup, target: str) -> None:
    """Engines of several nodes fill them."""
    if group.nodes > 1 and group.gpus % group.gpus_per_node:
        raise UserError(
            f"fleet.pools: {group.pool.name}: {group.gpus} GPUs an engine do not fill nodes of {group.gpus_per_node}; "
            f"{target} needs whole nodes"
        )
    if group.nodes > 1 and group.pool.dp > 1 and group.gpus_per_node % (group.pool.tp * group.pool.pp):
        raise UserError(
            f"fleet.pools: {group.pool.name}: ranks of {group.pool.tp * group.pool.pp} GPUs do not fit into nodes of "
            f"{group.gpus_per_node}; {target} needs whole ranks in a node"
        )
