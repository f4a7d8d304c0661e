"""How long an engine's steps take: the cost interface, and what shared blocks save."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from steelyard.cost.shared_reads import Spared
from steelyard.cost.step import StepTime
from steelyard.engine.batch import Batch

if TYPE_CHECKING:
    from steelyard.engine.engine import Engine


class StepCost(Protocol):
    """How long a step takes, from tables compiled before the run.

    ``kv`` is the sum of the cached tokens of a step's ``n`` decodes after the step, ``longest`` that of the longest.
    """

    def decode_line(self, n: int, kv: int, longest: int) -> tuple[float, float, int]:
        """(a, b, kv_max): the GPU time of a decode-only step is ``a + b * kv`` seconds for kv up to kv_max, while
        all requests grow together."""
        ...

    def decode_host(self, n: int) -> tuple[float, float, float]:
        """The host time of a decode-only step: prepare, launch, tail."""
        ...

    def mixed(self, n: int, kv: int, longest: int, chunks: list[tuple[int, int]]) -> StepTime:
        """A step with ``n`` decodes and prefill chunks of (tokens, context before them)."""
        ...


def time_of(cost: StepCost, batch: Batch) -> StepTime:
    """How long a batch takes by a cost."""
    if batch.chunks:
        return cost.mixed(batch.decodes, batch.kv, batch.longest, batch.chunks)
    a, b, _ = cost.decode_line(batch.decodes, batch.kv, batch.longest)
    return StepTime(a + b * batch.kv, *cost.decode_host(batch.decodes))


def time_of_step(engine: Engine, batch: Batch) -> StepTime:
    """How long an engine takes for a batch."""
    spared = spared_by(engine, batch.kv)
    if spared is None:
        return time_of(engine.cost, batch)
    if batch.chunks:
        return engine.cost.mixed(batch.decodes, batch.kv - spared.tokens, batch.longest, batch.chunks)
    a, b, _ = decode_line(engine, batch.decodes, batch.kv, batch.longest, spared)
    return StepTime(a + b * batch.kv, *engine.cost.decode_host(batch.decodes))


def decode_line(engine: Engine, n: int, kv: int, longest: int, spared: Spared | None) -> tuple[float, float, int]:
    """`StepCost.decode_line`, less the repeated reads of shared blocks that the GPU's cache saves."""
    if spared is None:
        return engine.cost.decode_line(n, kv, longest)
    a, b, kv_max = engine.cost.decode_line(n, kv - spared.tokens, longest)
    return a - b * spared.tokens, b, min(kv_max + spared.tokens, spared.high)


def spared_by(engine: Engine, kv: int) -> Spared | None:
    """The reads that shared blocks save in a step over ``kv`` cached tokens; None if no blocks are shared."""
    if engine.shared_reads is None or not kv:
        return None
    sharing, size = engine.scheduler.kv.sharing, engine.limits.block_size
    if not sharing.again:
        return None
    return engine.shared_reads.spared(kv, size * sharing.several, size * sharing.again)
