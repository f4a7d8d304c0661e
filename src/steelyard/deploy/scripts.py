"""Shell scripts of a fleet: one per pool, one per router, and one that starts it all if it fits a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from steelyard.deploy.fleets import EngineGroup, by_model, fleet_notes, groups
from steelyard.deploy.parts import Deployment, Note, Told, command, comment, facts, heading
from steelyard.deploy.routers import policy
from steelyard.scenario import Scenario

_PORT = 8000
_ROUTER_PORT = 30000


@dataclass(frozen=True)
class Engines:
    """How a target's engines and its router are started."""

    target: str
    title: str
    first_token: str
    told: Callable[[EngineGroup], Told]
    program: Callable[[EngineGroup], list[str]]
    raw: Callable[[EngineGroup], list[str]]
    before: Callable[[EngineGroup], str]
    router: list[str]
    policies: dict[str, str]
    disaggregated: str
    aware_of_ranks: Callable[[int], tuple[str, ...]]


def scripts(scenario: Scenario, engines: Engines) -> Deployment:
    """The files of a fleet."""
    found = groups(scenario, engines.title)
    local = _on_one_machine(found)
    notes = fleet_notes(scenario, engines.first_token)
    files = {}
    for group in found:
        told = engines.told(group)
        notes += told.notes
        files[f"{group.name}.sh"] = _pool_script(group, told, engines)
    addresses = _addresses(found, local)
    several = len({group.model.called for group in found}) > 1
    for i, (model, own) in enumerate(by_model(found)):
        name = f"router-{i}.sh" if several else "router.sh"
        text, more = _router_script(scenario, model, own, addresses, engines, _ROUTER_PORT + i)
        notes += more
        files[name] = text
    unique = list(dict.fromkeys(notes))
    top = heading(
        f"{scenario.name} with {engines.title}, by steelyard emit. Start every pool, then the router.", unique
    )
    routers = [name for name in files if name.startswith("router")]
    if local:
        files["launch.sh"] = _launch(found, routers)
    return Deployment(engines.target, {name: "#!/bin/sh\n" + top + text for name, text in files.items()}, tuple(unique))


def _on_one_machine(found: Sequence[EngineGroup]) -> bool:
    same = len({group.gpu.name for group in found}) == 1
    return same and sum(group.pool.replicas * group.gpus for group in found) <= found[0].gpus_per_node


def _pool_script(group: EngineGroup, told: Told, engines: Engines) -> str:
    pool = group.pool
    nodes = f" on {group.nodes} nodes: NODE_RANK is 0 on the first, MASTER_ADDR its address" if group.nodes > 1 else ""
    about = (
        f"Pool {pool.name}: {pool.replicas} replicas of {group.gpus} {group.gpu.full_name}{nodes}. Run this once for "
        "each replica; PORT is the port it listens at."
    )
    known = facts(name=pool.name, role=pool.role, gpu=group.gpu.name, replicas=pool.replicas, nodes=group.nodes)
    run = command(["exec", *engines.program(group)], told.arguments, [*engines.raw(group), '"$@"'])
    return "\n" + comment(about) + engines.before(group) + known + run


def _addresses(found: Sequence[EngineGroup], local: bool) -> dict[str, list[str]]:
    """Where each pool's replicas listen: at ports of this machine, or on hosts that are called by pool and number."""
    addresses, port = {}, _PORT
    for group in found:
        count = group.pool.replicas
        if local:
            addresses[group.name] = [f"http://127.0.0.1:{port + i}" for i in range(count)]
            port += count
        else:
            addresses[group.name] = [f"http://{group.name}-{i}:{_PORT}" for i in range(count)]
    return addresses


def _router_script(
    scenario: Scenario,
    model: str,
    own: Sequence[EngineGroup],
    addresses: dict[str, list[str]],
    engines: Engines,
    port: int,
) -> tuple[str, list[Note]]:
    fleet = scenario.fleet
    chosen, notes = policy(fleet.router, "fleet.router", engines.policies, engines.title)
    told = Told()
    told.flag("--host", "0.0.0.0")
    told.flag("--port", port)
    ranks = {group.pool.dp for group in own}
    if fleet.of_role("prefill"):
        decode, more = policy(fleet.decode_router, "fleet.decode_router", engines.policies, engines.title)
        notes += more
        told.flag(engines.disaggregated)
        for group in own:
            for address in addresses[group.name]:
                told.flag("--prefill" if group.pool.role == "prefill" else "--decode", address)
        told.flag("--prefill-policy", chosen)
        told.flag("--decode-policy", decode)
    else:
        told.flag("--worker-urls", *(address for group in own for address in addresses[group.name]))
        told.flag("--policy", chosen)
    if len(ranks) == 1 and max(ranks) > 1:
        aware = engines.aware_of_ranks(max(ranks))
        told.flag(*aware)
    elif max(ranks) > 1:
        notes.append(
            Note("fleet.router", "pools differ in dp, so engines choose among their own ranks, not the router")
        )
    about = f"The router of {model}. Replace host names, if pools do not run on hosts of these names."
    known = facts(model=model, router=fleet.router, decode_router=fleet.decode_router)
    return "\n" + comment(about) + known + command(["exec", *engines.router], told.arguments, ['"$@"']), notes


def _launch(found: Sequence[EngineGroup], routers: Sequence[str]) -> str:
    """All of the fleet on one machine."""
    lines, gpu, port = [], 0, _PORT
    for group in found:
        for _ in range(group.pool.replicas):
            devices = ",".join(map(str, range(gpu, gpu + group.gpus)))
            lines.append(f"CUDA_VISIBLE_DEVICES={devices} PORT={port} sh ./{group.name}.sh &\n")
            gpu, port = gpu + group.gpus, port + 1
    lines += [f"sh ./{name} &\n" for name in routers]
    stop = "trap 'kill $(jobs -p)' INT TERM\n"
    return (
        "\n"
        + comment("The whole fleet on this machine.")
        + 'cd "$(dirname "$0")" || exit 1\n'
        + "".join([*lines, stop, "wait\n"])
    )
