"""Whether a capture's tokens chose experts as served ones do.

Dummy weights with greedy decoding may send all tokens to the same experts: steps are then quicker than the experts of
evenly routed tokens can be read, and a prediction of other routing is off by as much. ``expert_routing`` in
``meta.json`` says how they were routed: a strategy of vLLM's routing simulator such as ``uniform_random``, ``trained``
for the gates of real weights, or ``unknown``. Where it does not, the times of decode steps may still tell.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steelyard.hardware import Gpu
from steelyard.model import GroupedGemm, ModelSpec, operators
from steelyard.quoting import shortened
from steelyard.validate.capture import Capture
from steelyard.validate.steps import RecordedStep

Floats = NDArray[np.float64]

RECORDED = "expert_routing"  # the key of meta.json
UNKNOWN = "unknown"
_FEWEST = 8  # steps of a size, whose median counts; chosen


@dataclass(frozen=True)
class Reading:
    """Decode steps of like size, and the least time in which the GPU can read the experts they need."""

    decodes: int  # of the step in the middle, by how much longer it took than its experts' reading
    steps: int
    seconds: float  # of that step
    least: float  # to read the experts that evenly routed tokens choose, at the memory's peak

    @property
    def possible(self) -> bool:
        """Whether tokens may have been routed evenly."""
        return self.seconds >= self.least


def recorded_routing(capture: Capture) -> str:
    """How experts were routed, by the capture's own account."""
    found = capture.meta.get(RECORDED)
    return found if isinstance(found, str) and found else UNKNOWN


def has_experts(model: ModelSpec) -> bool:
    """Whether a model has routed experts."""
    return bool(_grouped(model, 1))


def routing_notes(capture: Capture, model: ModelSpec, steps: Iterable[RecordedStep], gpu: Gpu, tp: int) -> list[str]:
    """What a reader must know about the routing of a capture; nothing for models without experts."""
    if not _grouped(model, tp):
        return []
    routing = recorded_routing(capture)
    quick = [each for each in readings(model, steps, gpu, tp) if not each.possible]
    if quick:
        worst = min(quick, key=lambda each: each.seconds / each.least)
        return [
            f"experts were not routed evenly (recorded: {shortened(routing)}): steps of {worst.decodes} decodes took "
            f"{worst.seconds * 1e3:.1f} ms, and the experts that even routing needs take {worst.least * 1e3:.1f} ms to "
            "read; errors say nothing about engines whose tokens choose evenly"
        ]
    if routing == UNKNOWN:
        return [
            f"how experts were routed is not known ({RECORDED} in meta.json): even routing is simulated, and steps are "
            "no quicker than that allows"
        ]
    return []


def readings(model: ModelSpec, steps: Iterable[RecordedStep], gpu: Gpu, tp: int) -> Iterator[Reading]:
    """Decode steps right behind others, by their size in powers of two; none of models without experts."""
    if not _grouped(model, tp):
        return
    sizes: dict[int, list[tuple[int, float]]] = defaultdict(list)
    before: RecordedStep | None = None
    for step in steps:
        if before is not None and not step.chunks and not before.chunks and step.scheduled < before.updated:
            sizes[step.decodes.bit_length()].append((step.decodes, step.updated - before.updated))
        before = step
    for found in (sizes[size] for size in sorted(sizes) if len(sizes[size]) >= _FEWEST):
        counts, seconds = np.array(found, dtype=np.float64).T
        least = least_seconds(model, counts, gpu, tp)
        middle = np.argsort(seconds / least)[len(found) // 2]
        yield Reading(int(counts[middle]), len(found), float(seconds[middle]), float(least[middle]))


def least_seconds(model: ModelSpec, tokens: Floats, gpu: Gpu, tp: int) -> Floats:
    """To read the weights of all experts that evenly routed tokens choose, once, at the memory's peak."""
    moved = np.zeros_like(tokens)
    for count, gemm in _grouped(model, tp):
        moved += count * gemm.touched(tokens) * gemm.k * gemm.n * gemm.weight_bytes
    return moved / gpu.memory_bandwidth


def _grouped(model: ModelSpec, tp: int) -> list[tuple[int, GroupedGemm]]:
    """The matrices of routed experts, each with the number of layers that have it."""
    return [
        (layer.count, each)
        for layer in model.layers
        for each in operators(model, layer, tp)
        if isinstance(each, GroupedGemm)
    ]
