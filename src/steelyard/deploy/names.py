"""Names of models and GPUs in scenarios, and what targets call them."""

from __future__ import annotations

import re
from pathlib import Path

from steelyard.errors import UserError
from steelyard.hardware import Gpu, find_gpu
from steelyard.model import catalog_name, hub_name

_SAFE = re.compile(r"[A-Za-z0-9_./~][A-Za-z0-9_./~@:+=-]*")
_PRODUCTS = {  # as NVIDIA's GPU feature discovery labels nodes (nvidia.com/gpu.product)
    "a100-40": "NVIDIA-A100-SXM4-40GB",
    "a100-80": "NVIDIA-A100-SXM4-80GB",
    "a800": "NVIDIA-A800-SXM4-80GB",
    "h100": "NVIDIA-H100-80GB-HBM3",
    "h800": "NVIDIA-H800",
    "h200": "NVIDIA-H200",
    "h20": "NVIDIA-H20",
    "b200": "NVIDIA-B200",
    "gb200": "NVIDIA-GB200",
    "l40s": "NVIDIA-L40S",
    "rtx-4090": "NVIDIA-GeForce-RTX-4090",
    "rtx-pro-6000": "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
}
_RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "Huawei": "huawei.com/Ascend910"}
SELECTOR = "nvidia.com/gpu.product"
OTHER_SELECTOR = "steelyard/gpu"  # for GPUs whose label depends on the cluster; a note says so


def deployed_name(config: str) -> str:
    """What an engine calls a scenario's model: its name on the hub, or the folder of its config.json.

    Some targets pass it through a shell of their own, so only plain names are let through.
    """
    name = config if "/" in config and catalog_name(config) else hub_name(config)
    if name is None:
        path = Path(config)
        name = str(path.parent) if path.name == "config.json" else config
    if not _SAFE.fullmatch(name):
        raise UserError(f"model: {name!r}: cannot be deployed under this name; use letters, digits and ._/~@:+=- only")
    return name


def simulated_name(name: str) -> str:
    """What a scenario calls an engine's model: its name in the catalog, if it has it."""
    return catalog_name(name) or name


def selector(gpu: Gpu) -> dict[str, str]:
    """The node selector of a GPU type."""
    product = _PRODUCTS.get(gpu.name)
    return {SELECTOR: product} if product else {OTHER_SELECTOR: gpu.name}


def selected(labels: object) -> str | None:
    """The GPU type that a node selector asks for."""
    if not isinstance(labels, dict):
        return None
    for key in (SELECTOR, OTHER_SELECTOR):
        if key in labels:
            product = str(labels[key])
            known = {label: name for name, label in _PRODUCTS.items()}
            return known.get(product) or find_gpu(product).name
    return None


def resource(gpu: Gpu) -> str:
    """What Kubernetes counts these GPUs as."""
    return _RESOURCES[gpu.vendor]


RESOURCES = tuple(_RESOURCES.values())
