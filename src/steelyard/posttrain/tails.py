"""Tail policies as a scenario names them."""

from __future__ import annotations

from steelyard.balance.settings import TailSettings
from steelyard.balance.tail import Divided, OverSampling, PartialRollout, Reconfiguring, Repacking, TailBatching
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.wide import wide_replicas
from steelyard.scenario.tails import (
    DividedSpec,
    NoTail,
    OverSamplingSpec,
    PartialSpec,
    ReconfigureSpec,
    RepackSpec,
    TailBatchingSpec,
)


def tail_of(setup: PosttrainSetup) -> TailSettings | None:
    """The policy with its settings; None if every trajectory is waited for."""
    spec = setup.scenario.tail
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
        case ReconfigureSpec():
            return Reconfiguring(few=spec.few, wide=wide_replicas(setup, spec))
        case NoTail():
            return None
