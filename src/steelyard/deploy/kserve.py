"""Target kserve: an LLMInferenceService for each model, or for each pool if a model has several."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from steelyard.deploy.fleets import EngineGroup, by_model, fleet_notes, groups
from steelyard.deploy.manifests import dumped, pod, selector_notes
from steelyard.deploy.parts import Deployment, Note, Told, heading, slug, slugs
from steelyard.deploy.vllm import vllm_told
from steelyard.errors import UserError
from steelyard.scenario import Scenario

VERSION = "KServe 0.20"
API = "serving.kserve.io/v1alpha2"
KIND = "LLMInferenceService"
ADDITIONAL = "VLLM_ADDITIONAL_ARGS"  # that KServe's own command passes to vLLM through a shell
PICKER = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}
SCORERS: dict[str, dict[str, int]] = {
    "least-outstanding": {"queue-scorer": 1},
    "prefix-aware": {"prefix-cache-scorer": 1},
    "kv-aware": {"prefix-cache-scorer": 3, "kv-cache-utilization-scorer": 2, "queue-scorer": 2},
}
_NEAREST = {"power-of-two": "least-outstanding", "slo-aware": "least-outstanding"}
_NEAREST |= {"sticky": "prefix-aware", "sticky-spill": "prefix-aware"}
_PLACE = {"--tensor-parallel-size": "tensor", "--data-parallel-size": "data", "--enable-expert-parallel": "expert"}


def kserve(scenario: Scenario) -> Deployment:
    """A manifest for each service."""
    found, notes = groups(scenario, VERSION), fleet_notes(scenario, "decode")
    services = list(_services(found))
    names = slugs([f"{scenario.name}-{own[0].name}" if len(services) > 1 else scenario.name for own in services])
    router, more = _router(scenario)
    notes += more
    shared = len({own[0].model.called for own in services}) < len(services)
    manifests = {}
    for name, own in zip(names, services, strict=True):
        spec, more = _service(own)
        notes += more
        route: dict[str, Any] = {}
        if shared:
            weight = round(own[0].pool.weight or own[0].pool.replicas * own[0].gpus)
            route = {"group": slug(own[0].model.called), "weight": max(1, min(weight, 1_000_000))}
        spec["router"] = {"route": route, "gateway": {}, **router}
        manifests[f"{name}.yaml"] = {"apiVersion": API, "kind": KIND, "metadata": {"name": name}, "spec": spec}
    if shared:
        notes.append(
            Note("fleet.router", "each pool is a service of its own, and requests are split among them by weight")
        )
    unique = list(dict.fromkeys(notes))
    top = heading(f"A fleet for {VERSION} (kubectl apply -f), by steelyard emit.", unique)
    files = {name: top + dumped(manifest) for name, manifest in manifests.items()}
    return Deployment("kserve", files, tuple(unique))


def _services(found: list[EngineGroup]) -> list[list[EngineGroup]]:
    services: list[list[EngineGroup]] = []
    for model, own in by_model(found):
        if own[0].pool.role == "serve":
            services += [[group] for group in own]
            continue
        pools = {role: [group for group in own if group.pool.role == role] for role in ("decode", "prefill")}
        if any(len(each) != 1 for each in pools.values()):
            raise UserError(
                f"fleet.pools: {model} has {len(pools['prefill'])} prefill and {len(pools['decode'])} decode pools; a "
                "service of KServe has one of each"
            )
        services.append([*pools["decode"], *pools["prefill"]])
    return services


def _router(scenario: Scenario) -> tuple[dict[str, Any], list[Note]]:
    """The scheduler of the service. Without one, Kubernetes chooses a pod at random."""
    fleet = scenario.fleet
    if fleet.of_role("prefill"):
        told = "KServe's own scheduler chooses engines of both roles, by load and cached prefixes"
        return {"scheduler": {}}, [Note("fleet.router", told), Note("fleet.decode_router", told)]
    if fleet.router in ("random", "round-robin"):
        note = Note("fleet.router", "round-robin was simulated; without a scheduler Kubernetes chooses at random")
        return {}, [note] if fleet.router == "round-robin" else []
    nearest = fleet.router if fleet.router in SCORERS else _NEAREST[fleet.router]
    notes = []
    if nearest != fleet.router:
        notes = [Note("fleet.router", f"{fleet.router} was simulated; KServe's scorers come nearest to {nearest}")]
    return {"scheduler": {"config": {"inline": _picker(SCORERS[nearest])}}}, notes


def _picker(scorers: dict[str, int]) -> dict[str, Any]:
    types = ["single-profile-handler", *scorers, "max-score-picker"]
    chosen: list[dict[str, Any]] = [{"pluginRef": name, "weight": weight} for name, weight in scorers.items()]
    profile = {"name": "default", "plugins": [*chosen, {"pluginRef": "max-score-picker"}]}
    return {**PICKER, "plugins": [{"type": name} for name in types], "schedulingProfiles": [profile]}


def _service(own: Sequence[EngineGroup]) -> tuple[dict[str, Any], list[Note]]:
    """The first pool is the service itself, the second its prefill engines."""
    first = own[0]
    uri = first.deployed if "://" in first.deployed else f"hf://{first.deployed}"
    if first.deployed.startswith(("/", ".", "~")):
        raise UserError(
            f"model: {first.deployed}: KServe needs the model's name on the hub; give one, or use another target"
        )
    spec: dict[str, Any] = {"model": {"uri": uri, "name": first.model.name or first.deployed}}
    notes: list[Note] = []
    for group in own:
        workload, more = _workload(group)
        notes += more
        spec.update({"prefill": workload} if group.pool.role == "prefill" else workload)
    return spec, notes


def _workload(group: EngineGroup) -> tuple[dict[str, Any], list[Note]]:
    told = vllm_told(group, "KServe's vLLM")
    pool = group.pool
    if group.nodes > 1 and pool.dp == 1:
        raise UserError(
            f"fleet.pools: {pool.name}: an engine of {group.nodes} nodes; KServe spreads data-parallel ranks over "
            "nodes, not tensor or pipeline parallelism"
        )
    workload: dict[str, Any] = {"replicas": pool.replicas}
    said = {"--served-model-name"}
    if group.nodes > 1:
        said |= set(_PLACE)
        local = group.gpus_per_node // (pool.tp * pool.pp)
        workload["parallelism"] = {
            "tensor": pool.tp,
            "data": pool.dp,
            "dataLocal": local,
            "expert": pool.expert_parallel,
        }
    else:
        said |= {"--tensor-parallel-size"}
        workload["parallelism"] = {"tensor": pool.tp}
    template = pod(group, {}, [{"name": ADDITIONAL, "value": _additional(told, said)}])
    workload["template"] = template
    if group.nodes > 1:
        workload["worker"] = template
    return workload, [*told.notes, *selector_notes(group)]


def _additional(told: Told, said: set[str]) -> str:
    """Arguments for a shell: KServe evaluates them."""
    return shlex.join([word for argument in told.arguments if argument[0] not in said for word in argument])
