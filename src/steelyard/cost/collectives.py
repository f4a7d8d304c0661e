"""Communication inside a tensor-parallel group: start-up time plus bytes over the link."""

from __future__ import annotations

import numpy as np

from steelyard.cost.source import Floats
from steelyard.hardware import Gpu

LINK_SHARE = 0.75  # of a link's rated bandwidth that a collective reaches
RING_SECONDS = (
    24e-6  # start of a library collective; 61/100/173 us for 8/16/32 MiB over four H200 give this and the share
)
ONE_SHOT_SECONDS = 6e-6  # start of a one-shot kernel in which every GPU reads all others


def allreduce(gpu: Gpu, ranks: int, size: Floats) -> Floats:
    """Seconds to sum ``size`` bytes over all ranks: one shot while small, a ring when large."""
    if ranks == 1:
        return np.zeros_like(size)
    rate = gpu.peer_bandwidth * LINK_SHARE
    ring = RING_SECONDS + 2.0 * (ranks - 1) / ranks * size / rate
    if not gpu.nvlink_bandwidth and ranks > 2:
        return ring  # over PCIe engines use their one-shot kernel for pairs only
    return np.minimum(ring, ONE_SHOT_SECONDS + (ranks - 1) * size / rate)


def allgather(gpu: Gpu, ranks: int, size: Floats) -> Floats:
    """Seconds until every rank holds all ``size`` bytes."""
    if ranks == 1:
        return np.zeros_like(size)
    return RING_SECONDS + (ranks - 1) / ranks * size / (gpu.peer_bandwidth * LINK_SHARE)
