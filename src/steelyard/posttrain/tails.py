"""Tail policies as a scenario names them."""

from __future__ import annotations

from steelyard.balance.settings import TailSettings
from steelyard.balance.tail import Divided, OverSampling, PartialRollout, Repacking, TailBatching
from steelyard.scenario.tails import (
    DividedSpec,
    NoTail,
    OverSamplingSpec,
    PartialSpec,
    RepackSpec,
    TailBatchingSpec,
)


def tail_of(
    spec: NoTail | OverSamplingSpec | TailBatchingSpec | PartialSpec | DividedSpec | RepackSpec,
) -> TailSettings | None:
    """The policy with its settings; None if every trajectory is waited for."""
    match spec:
        case OverSamplingSpec():
            return OverSampling(spec.factor)
        case TailBatchingSpec():
            return TailBatching(spec.groups, spec.samples)
        case PartialSpec():
            return PartialRollout(spec.budget)
        case DividedSpec():
            return Divided(spec.chunk)
        case RepackSpec():
            return Repacking(few=spec.few, fill=spec.fill)
        case NoTail():
            return None
