"""What data-parallel ranks exchange in a step, and the optimiser's update."""

from __future__ import annotations

from collections.abc import Sequence

from steelyard.cost.roofline import ELEMENTWISE_MEMORY
from steelyard.hardware import Gpu
from steelyard.posttrain.training.cost import Exchanges
from steelyard.posttrain.training.efficiency import ADAM_BYTES
from steelyard.posttrain.training.groups import Groups
from steelyard.posttrain.training.layout import FSDP, TrainLayout
from steelyard.posttrain.training.memory import WEIGHT_BYTES, Weights
from steelyard.posttrain.training.settings import TrainSettings

HOST_SHARE = 0.80  # of PCIe's rated bandwidth that large copies from and to pinned memory reach


def exchanges_of(gpu: Gpu, groups: Groups, held: Sequence[Weights], settings: TrainSettings) -> Exchanges:
    """The exchanges of the stage that has most of them, by the weights of each stage."""
    layout = groups.layout
    gradients = weights = fetch = 0.0
    for own in dict.fromkeys(held):
        size = (settings.gradient_bytes * own.dense, settings.gradient_bytes * own.experts)
        gradients = max(gradients, groups.scattered(*size) if layout.zero else groups.reduced(*size))
        if layout.zero:
            weights = max(weights, groups.scattered(WEIGHT_BYTES * own.dense, WEIGHT_BYTES * own.experts))
        if settings.reference == "offloaded":
            kept = own.sharded(layout) if layout.zero >= FSDP else own.total
            fetch = max(fetch, WEIGHT_BYTES * kept / host_rate(gpu))
    return Exchanges(gradients, weights, fetch)


def host_rate(gpu: Gpu) -> float:
    """Bytes/s between a GPU and pinned memory of its host."""
    return HOST_SHARE * gpu.pcie_bandwidth


def optimiser_seconds(gpu: Gpu, held: Sequence[Weights], layout: TrainLayout) -> float:
    """Seconds of Adam over the weights whose states a GPU keeps: bound by memory bandwidth."""
    most = max(own.sharded(layout) if layout.zero else float(own.total) for own in held)
    return ADAM_BYTES * most / (gpu.memory_bandwidth * ELEMENTWISE_MEMORY)
