"""Topology: nodes, their links, and the network between them."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from steelyard.scenario.base import Spec, mistake
from steelyard.scenario.numbers import (
    LEAST_BANDWIDTH,
    MOST_BANDWIDTH,
    BytesPerSecond,
    Degree,
    Latency,
    Slowdown,
    unit,
)

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BANDWIDTH = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([kKMGT]?)([bB])(?:ps|/s)?\s*")
_WANTED = (
    f"give bytes per second from {LEAST_BANDWIDTH:g} to {MOST_BANDWIDTH:g}, or with a unit: 400Gb (gigabits per "
    "second), 50GB (gigabytes)"
)


def read_bandwidth(value: Any) -> float:
    """Bytes/s from a number, or from text like ``400Gb``, ``50GB`` or ``50 GB/s``; b is bits, B is bytes."""
    rate = 0.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        rate = float(min(value, 2 * MOST_BANDWIDTH))  # a whole number may be too large for a float
    elif isinstance(value, str) and (found := _BANDWIDTH.fullmatch(value)):
        number, prefix, unit = found.groups()
        rate = float(number) * _PREFIXES[prefix] / (8.0 if unit == "b" else 1.0)
    if not LEAST_BANDWIDTH <= rate <= MOST_BANDWIDTH:
        raise mistake(f"not a bandwidth; {_WANTED}")
    return rate


Bandwidth = Annotated[float, BeforeValidator(read_bandwidth, json_schema_input_type=BytesPerSecond | str)]


class TopologySpec(Spec):
    """GPUs in nodes. Bandwidths are per GPU and direction. Defaults are those of the GPU's usual node."""

    gpus_per_node: Degree | None = Field(default=None, description="GPUs per node.")
    nvlink: Bandwidth | None = Field(
        default=None,
        description="Bandwidth of a GPU to others in its node, in bytes per second and one direction (an H100 has "
        "450GB; vendors often give both directions together, which is twice that).",
    )
    nvlink_latency: Latency | None = Field(default=None, description="Seconds until its first bytes arrive.")
    peer_access: bool | None = Field(
        default=None,
        description="Whether GPUs without NVLink reach each other's memory over PCIe, which hosts have to be set up "
        "for (docs/fleets.md). If not, all they send passes through the host's memory.",
    )
    nic: Bandwidth | None = Field(
        default=None,
        description="Bandwidth of a GPU to other nodes, one direction: 400Gb is one port of 400 Gb/s per GPU.",
    )
    nic_latency: Latency | None = Field(default=None, description="Seconds until its first bytes arrive.")
    oversubscription: Slowdown = Field(
        default=1.0,
        description="Ports per uplink of a leaf switch: with 2, all GPUs together get half of their bandwidth.",
    )
    nodes_per_leaf: Degree = Field(
        default=1,
        description="Nodes per leaf (or rail) switch; traffic among them is not oversubscribed.",
        json_schema_extra=unit("nodes"),
    )
