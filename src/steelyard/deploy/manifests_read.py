"""Engines in Kubernetes manifests of Dynamo and KServe."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from steelyard.deploy.dynamo import KIND as DYNAMO_KIND
from steelyard.deploy.dynamo import TYPES
from steelyard.deploy.imported import Remarks
from steelyard.deploy.kserve import ADDITIONAL, SCORERS
from steelyard.deploy.kserve import KIND as KSERVE_KIND
from steelyard.deploy.names import selected
from steelyard.deploy.parts import brief
from steelyard.deploy.routers import DYNAMO, simulated
from steelyard.errors import UserError, quoted
from steelyard.files.yamltext import parse_yaml

_BETWEEN = re.compile(r"^---.*$", re.MULTILINE)


@dataclass(frozen=True)
class Worker:
    """One kind of engine: vLLM's arguments, and what the manifest says about it."""

    name: str
    role: str | None
    gpu: str | None
    replicas: object
    words: list[str]


def dynamo_workers(text: str, where: str, routers: dict[str, str], told: Remarks) -> list[Worker]:
    """The vLLM workers of a DynamoGraphDeployment."""
    workers = []
    for manifest in _manifests(text, where, DYNAMO_KIND):
        for component in _list(manifest, "spec", "components", where=where):
            kind, main = component.get("type"), _main(component.get("podTemplate"), where)
            arguments = _words(main, where)
            if kind == "frontend":
                _dynamo_router(arguments, main, routers, told)
            elif kind in TYPES.values() and "dynamo.vllm" in arguments:
                words = arguments[arguments.index("dynamo.vllm") + 1 :]
                role = next(role for role, type_ in TYPES.items() if type_ == kind)
                workers.append(_worker(component, role, _spec(component.get("podTemplate")), words, where))
            else:
                told.warnings.append(f"component {brief(component.get('name'))}: not a vLLM worker; left out")
    return workers


def kserve_workers(text: str, where: str, routers: dict[str, str], told: Remarks) -> list[Worker]:
    """The engines of LLMInferenceServices."""
    workers = []
    for manifest in _manifests(text, where, KSERVE_KIND):
        spec = _mapping(manifest.get("spec"), f"{where}: spec")
        name = brief(_mapping(manifest.get("metadata"), f"{where}: metadata").get("name", "service"))
        uri = _mapping(spec.get("model"), f"{where}: spec.model").get("uri")
        if not isinstance(uri, str):
            raise UserError(f"{where}: spec.model.uri: missing; it names the model, such as hf://Qwen/Qwen3-32B")
        model = uri.removeprefix("hf://")
        _kserve_router(spec, routers)
        prefill = spec.get("prefill")
        role = "decode" if isinstance(prefill, dict) else "serve"
        workers.append(_kserve_worker(spec, name if role == "serve" else role, role, model, where))
        if isinstance(prefill, dict):
            workers.append(_kserve_worker(prefill, "prefill", "prefill", model, where))
        if spec.get("baseRefs"):
            told.warnings.append("baseRefs: what other manifests say is not read")
    return workers


def _kserve_worker(workload: dict[str, Any], name: str, role: str, model: str, where: str) -> Worker:
    template = _mapping(workload.get("template", {}), f"{where}: template")
    main = _main({"spec": template}, where)
    words = [model, *_strings(main.get("args", []), where)]
    for entry in main.get("env", []) if isinstance(main.get("env"), list) else []:
        if isinstance(entry, dict) and entry.get("name") == ADDITIONAL:
            try:
                words += shlex.split(str(entry.get("value", "")))
            except ValueError:
                raise UserError(f"{where}: {ADDITIONAL}: has a quotation mark without its partner") from None
    parallelism = _mapping(workload.get("parallelism", {}), f"{where}: parallelism")
    for key, flag in (("tensor", "tensor"), ("data", "data"), ("pipeline", "pipeline")):
        if key in parallelism:
            words += [f"--{flag}-parallel-size", str(parallelism[key])]
    if parallelism.get("expert") is True:
        words.append("--enable-expert-parallel")
    return Worker(name, role, selected(template.get("nodeSelector")), workload.get("replicas"), words)


def _kserve_router(spec: dict[str, Any], routers: dict[str, str]) -> None:
    """Scorers of the scheduler. Without one, pods are chosen at random."""
    router = spec.get("router")
    if not isinstance(router, dict):
        return
    scheduler = router.get("scheduler")
    if scheduler is None:
        routers["router"] = "random"
        return
    text = str(scheduler)
    scored = {name for scorers in SCORERS.values() for name in scorers if name in text}
    exact = [router for router, scorers in SCORERS.items() if set(scorers) == scored]
    routers["router"] = exact[0] if exact else "kv-aware"


def _dynamo_router(words: list[str], main: dict[str, Any], routers: dict[str, str], told: Remarks) -> None:
    mode, env = None, main.get("env")
    for entry in env if isinstance(env, list) else []:
        if isinstance(entry, dict) and entry.get("name") == "DYN_ROUTER_MODE":
            mode = str(entry.get("value"))
    for word, value in pairwise(words):
        mode = value if word == "--router-mode" else mode
    if mode is None:
        return
    router = simulated(mode, DYNAMO)
    if router is None:
        told.warnings.append(f"--router-mode {brief(mode)}: no router of scenarios; round-robin is simulated")
        return
    routers["router"] = routers["decode_router"] = router


def _worker(component: dict[str, Any], role: str, spec: dict[str, Any], words: list[str], where: str) -> Worker:
    name = component.get("name")
    if not isinstance(name, str) or not name:
        raise UserError(f"{where}: spec.components: a component without a name")
    return Worker(name, role, selected(spec.get("nodeSelector")), component.get("replicas", 1), words)


def _manifests(text: str, where: str, kind: str) -> Iterator[dict[str, Any]]:
    """The documents of one kind."""
    for part in _BETWEEN.split(text):
        document = parse_yaml(part, where) if part.strip() else None
        if isinstance(document, dict) and document.get("kind") == kind:
            yield document


def _mapping(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where}: must be a mapping (found {quoted(value)})")
    return value


def _list(manifest: dict[str, Any], *keys: str, where: str) -> list[dict[str, Any]]:
    value: Any = manifest
    for key in keys:
        value = _mapping(value, f"{where}: {'.'.join(keys)}").get(key)
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise UserError(f"{where}: {'.'.join(keys)}: must be a list of mappings (found {quoted(value)})")
    return value


def _spec(template: object) -> dict[str, Any]:
    spec = template.get("spec") if isinstance(template, dict) else None
    return spec if isinstance(spec, dict) else {}


def _main(template: object, where: str) -> dict[str, Any]:
    """The container called main."""
    containers = _spec(template).get("containers", [])
    for each in containers if isinstance(containers, list) else []:
        if isinstance(each, dict) and each.get("name") == "main":
            return each
    raise UserError(f"{where}: an engine's pod has no container called main")


def _words(main: dict[str, Any], where: str) -> list[str]:
    return [*_strings(main.get("command", []), where), *_strings(main.get("args", []), where)]


def _strings(value: object, where: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str | int | float) for each in value):
        raise UserError(f"{where}: command and args must be lists of text (found {quoted(value)})")
    return [str(each) for each in value]
