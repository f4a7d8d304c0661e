"""How long an engine's steps take: what it asks of costs, and what it need not pay for since requests share blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from steelyard.cost.shared_reads import Spared
from steelyard.cost.step import StepTime
from steelyard.engine.batch import Batch

if TYPE_CHECKING:
    from steelyard.engine.engine import Engine


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
    """`StepCost.decode_line`, with blocks that several requests hold read no oftener than they have to be."""
    if spared is None:
        return engine.cost.decode_line(n, kv, longest)
    a, b, kv_max = engine.cost.decode_line(n, kv - spared.tokens, longest)
    return a - b * spared.tokens, b, min(kv_max + spared.tokens, spared.high)


def spared_by(engine: Engine, kv: int) -> Spared | None:
    """What a step over so many cached tokens need not read; None where nobody shares any."""
    if engine.shared_reads is None or not kv:
        return None
    sharing, size = engine.scheduler.kv.sharing, engine.limits.block_size
    if not sharing.again:
        return None
    return engine.shared_reads.spared(kv, size * sharing.several, size * sharing.again)
