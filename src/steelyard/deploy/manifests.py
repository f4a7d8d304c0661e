"""Parts of Kubernetes manifests that Dynamo and KServe share."""

from __future__ import annotations

from typing import Any

import yaml

from steelyard.deploy.fleets import EngineGroup
from steelyard.deploy.names import OTHER_SELECTOR, resource, selector
from steelyard.deploy.parts import Note

_SIDE_CHANNEL = {
    "name": "VLLM_NIXL_SIDE_CHANNEL_HOST",
    "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}},
}


class _Dumper(yaml.SafeDumper):
    """Without anchors, which other readers of these files may not know."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dumped(document: Any) -> str:
    """A document as YAML; text that could be read as something else is quoted."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=1_000_000)


def pod(group: EngineGroup, container: dict[str, Any], env: list[dict[str, Any]]) -> dict[str, Any]:
    """A pod of an engine, on nodes that have its GPUs."""
    count = str(min(group.gpus, group.gpus_per_node))
    limits = {resource(group.gpu): count}
    if group.pool.role != "serve":
        env = [*env, _SIDE_CHANNEL]
    main = {"name": "main", **container, **({"env": env} if env else {})}
    return {
        "nodeSelector": selector(group.gpu),
        "containers": [{**main, "resources": {"limits": limits, "requests": dict(limits)}}],
    }


def selector_notes(group: EngineGroup) -> list[Note]:
    """A note, if nodes with a GPU have no common label."""
    if OTHER_SELECTOR in selector(group.gpu):
        told = f"nodes with {group.gpu.full_name} need the label {OTHER_SELECTOR}={group.gpu.name}"
        return [Note("fleet.pools.gpu", told)]
    return []
