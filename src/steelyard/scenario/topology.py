"""How the fleet's GPUs are wired: nodes, their links, and the network between them."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from steelyard.scenario.base import Count, NonNegative, Positive, Spec, mistake

_PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_BANDWIDTH = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([kKMGT]?)([bB])(?:ps|/s)?\s*")
_WANTED = "give bytes per second as a number above 0, or with a unit: 400Gb (gigabits per second), 50GB (gigabytes)"


def read_bandwidth(value: Any) -> float:
    """Bytes/s from a number, or from text like ``400Gb``, ``50GB`` or ``50 GB/s``; b is bits, B is bytes."""
    rate = 0.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        rate = float(value)
    elif isinstance(value, str) and (found := _BANDWIDTH.fullmatch(value)):
        number, prefix, unit = found.groups()
        rate = float(number) * _PREFIXES[prefix] / (8.0 if unit == "b" else 1.0)
    if not 0.0 < rate < math.inf:
        raise mistake(f"not a bandwidth; {_WANTED}")
    return rate


Bandwidth = Annotated[float, BeforeValidator(read_bandwidth, json_schema_input_type=float | str)]


class TopologySpec(Spec):
    """GPUs in nodes. Bandwidths are per GPU and direction; what is not given is as in the GPU's usual node."""

    gpus_per_node: Count | None = Field(default=None, description="GPUs that share a node's fast links.")
    nvlink: Bandwidth | None = Field(
        default=None,
        description="Bandwidth of a GPU to the others of its node, one direction (an H100 has 450GB; vendors often "
        "print both directions together, which is twice that).",
    )
    nvlink_latency: NonNegative | None = Field(default=None, description="Seconds until its first bytes arrive.")
    nic: Bandwidth | None = Field(
        default=None, description="Bandwidth of a GPU to other nodes, one direction: 400Gb is one 400 Gb/s port each."
    )
    nic_latency: NonNegative | None = Field(default=None, description="Seconds until its first bytes arrive.")
    oversubscription: Positive = Field(
        default=1.0, ge=1.0, description="Ports per uplink of a leaf switch: 2 halves what all GPUs get at once."
    )
    nodes_per_leaf: Count = Field(
        default=1,
        description="Nodes behind the same leaf (or rail) switches; traffic among them is not oversubscribed.",
    )
