"""What an engine asks of costs: how long its steps take."""

from __future__ import annotations

from typing import Protocol

from steelyard.cost.step import StepTime
from steelyard.engine.batch import Batch


class StepCost(Protocol):
    """How long a step takes, compiled to tables beforehand.

    ``kv`` is the sum of the cached tokens of a step's ``n`` decodes after it, ``longest`` that of the longest of them.
    """

    def decode_line(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        """(a, b, kv_max): the GPU's part of a decode-only step is ``a + b * kv`` seconds for kv up to kv_max, where
        all requests go on growing together."""
        ...

    def decode_host(self, n: int) -> tuple[float, float, float]:
        """The other parts of a decode-only step: prepare, launch, tail."""
        ...

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        """A step with ``n`` decodes and prefill chunks of (tokens, context before them)."""
        ...


def time_of(cost: StepCost, batch: Batch) -> StepTime:
    """How long a batch takes where that is its cost."""
    if batch.chunks:
        return cost.mixed(batch.decodes, batch.kv, batch.longest, batch.chunks)
    a, b, _ = cost.decode_line(batch.decodes, batch.kv, batch.longest)
    return StepTime(a + b * batch.kv, *cost.decode_host(batch.decodes))
