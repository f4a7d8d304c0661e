"""Target dynamo: a DynamoGraphDeployment with Dynamo's frontend and vLLM workers."""

from __future__ import annotations

from typing import Any

from steelyard.deploy.fleets import EngineGroup, fleet_notes, groups
from steelyard.deploy.manifests import dumped, pod, selector_notes
from steelyard.deploy.parts import Deployment, Note, heading, slug
from steelyard.deploy.routers import DYNAMO, policy
from steelyard.deploy.vllm import vllm_told
from steelyard.scenario import Scenario

VERSION = "Dynamo 1.6.1"
IMAGE = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.1"
API = "nvidia.com/v1beta1"
KIND = "DynamoGraphDeployment"
TYPES = {"serve": "worker", "prefill": "prefill", "decode": "decode"}
_AFFINITY = 3600  # seconds that a session is remembered


def dynamo(scenario: Scenario) -> Deployment:
    """One manifest for the whole fleet."""
    found, notes = groups(scenario, VERSION), fleet_notes(scenario, "prefill")
    frontend, more = _frontend(scenario)
    notes += more
    components = [frontend]
    for group in found:
        component, more = _worker(group)
        components.append(component)
        notes += more
    manifest = {
        "apiVersion": API,
        "kind": KIND,
        "metadata": {"name": slug(scenario.name)},
        "spec": {"backendFramework": "vllm", "components": components},
    }
    unique = list(dict.fromkeys(notes))
    top = heading(f"A fleet for {VERSION} (kubectl apply -f), by steelyard emit.", unique)
    return Deployment("dynamo", {"dynamo.yaml": top + dumped(manifest)}, tuple(unique))


def _frontend(scenario: Scenario) -> tuple[dict[str, Any], list[Note]]:
    fleet, arguments = scenario.fleet, []
    if fleet.router in ("sticky", "sticky-spill"):
        arguments = ["--router-session-affinity-ttl-secs", str(_AFFINITY)]
    chosen, notes = policy(fleet.router, "fleet.router", DYNAMO, "Dynamo")
    if fleet.of_role("prefill") and DYNAMO.get(fleet.decode_router) != chosen:
        notes.append(Note("fleet.decode_router", f"Dynamo has one router; {chosen} chooses decode engines, too"))
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["python3", "-m", "dynamo.frontend"],
        "args": ["--router-mode", chosen, *arguments],
    }
    spec = {"containers": [container]}
    return {"name": "Frontend", "type": "frontend", "replicas": 1, "podTemplate": {"spec": spec}}, notes


def _worker(group: EngineGroup) -> tuple[dict[str, Any], list[Note]]:
    told = vllm_told(group, "Dynamo's vLLM worker")
    arguments = ["--model", group.deployed, *told.words]
    if group.pool.role != "serve":
        arguments += ["--disaggregation-mode", group.pool.role]
    container = {"image": IMAGE, "command": ["python3", "-m", "dynamo.vllm"], "args": arguments}
    component: dict[str, Any] = {
        "name": group.name,
        "type": TYPES[group.pool.role],
        "replicas": group.pool.replicas,
        "podTemplate": {"spec": pod(group, container, [])},
    }
    if group.nodes > 1:
        component["multinode"] = {"nodeCount": group.nodes}
    return component, [*told.notes, *selector_notes(group)]
