"""Target vllm: ``vllm serve`` for engines, ``vllm-router`` in front of them."""

from __future__ import annotations

from steelyard.deploy.fleets import EngineGroup
from steelyard.deploy.parts import Deployment, Told
from steelyard.deploy.routers import VLLM_ROUTER
from steelyard.deploy.scripts import Engines, scripts
from steelyard.deploy.vllm_flags import (
    ONLINE,
    STORED,
    as_simulated,
    check_scheduler,
    engine_flags,
    layout_flags,
    model_flags,
)
from steelyard.scenario import Scenario

VERSION = "vLLM 0.33 and vllm-router 0.1.16"


def vllm(scenario: Scenario) -> Deployment:
    """Scripts for ``vllm serve``."""
    return scripts(scenario, _ENGINES)


def vllm_told(group: EngineGroup, target: str = "vLLM") -> Told:
    """The flags of a pool's engines."""
    told = Told()
    check_scheduler(group.engine, target, "vllm", told)
    model_flags(told, group.model, group.base_dir, ONLINE, STORED)
    layout_flags(told, group.pool)
    engine_flags(told, as_simulated(told, group.engine, group.model, group.base_dir))
    return told


def _raw(group: EngineGroup) -> list[str]:
    """What differs between replicas and nodes."""
    port = ['--port "${PORT:-8000}"']
    if group.nodes == 1:
        return port
    master = '"${MASTER_ADDR:?the address of the first node}"'
    if group.pool.dp > 1:
        local = group.gpus_per_node // (group.pool.tp * group.pool.pp)
        return [
            *port,
            f"--data-parallel-size-local {local}",
            f'--data-parallel-start-rank "$((${{NODE_RANK:-0}} * {local}))"',
            f"--data-parallel-address {master}",
        ]
    rank = '--node-rank "${NODE_RANK:-0}"'
    return [*port, f"--nnodes {group.nodes}", rank, f"--master-addr {master}", "--distributed-executor-backend mp"]


def _before(group: EngineGroup) -> str:
    text = ""
    if group.pool.role != "serve":
        text += 'export VLLM_NIXL_SIDE_CHANNEL_HOST="${VLLM_NIXL_SIDE_CHANNEL_HOST:-$(hostname -i)}"\n'
        text += 'export VLLM_NIXL_SIDE_CHANNEL_PORT="${VLLM_NIXL_SIDE_CHANNEL_PORT:-$((${PORT:-8000} - 2400))}"\n'
    if group.nodes > 1:
        text += '[ "${NODE_RANK:-0}" -eq 0 ] || set -- --headless "$@"\n'
    return text


_ENGINES = Engines(
    target="vllm",
    title=VERSION,
    first_token="decode",
    told=vllm_told,
    program=lambda group: ["vllm", "serve", group.deployed],
    raw=_raw,
    before=_before,
    router=["vllm-router"],
    policies=VLLM_ROUTER,
    disaggregated="--vllm-pd-disaggregation",
    aware_of_ranks=lambda ranks: ("--intra-node-data-parallel-size", str(ranks)),
)
