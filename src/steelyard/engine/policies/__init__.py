"""Schedulers besides vLLM's own, by the names that scenarios know them by (docs/schedulers.md)."""

from __future__ import annotations

from collections.abc import Callable

from steelyard.engine.content import BlockNames
from steelyard.engine.limits import Limits
from steelyard.engine.policies.batching import Orca, StaticBatching
from steelyard.engine.policies.expecting import SglangSettings
from steelyard.engine.policies.phases import PhaseAware
from steelyard.engine.policies.policy import Policy
from steelyard.engine.policies.sglang import SglangScheduler
from steelyard.engine.scheduler import Scheduler

MakePolicy = Callable[[Limits, BlockNames, bool], Policy]

POLICIES: dict[str, MakePolicy] = {
    "vllm": lambda limits, names, plain: Scheduler(limits, names, plain=plain),
    "sarathi": lambda limits, names, plain: Scheduler(limits, names, plain=plain),
    "orca": lambda limits, names, plain: Orca(limits, names, plain=plain),
    "static": lambda limits, names, plain: StaticBatching(limits, names, plain=plain),
    "phase-aware": lambda limits, names, plain: PhaseAware(limits, names, plain=plain),
}
"""By name. `SchedulerName` of the scenario has the same names, and ``sglang``, which has settings of its own."""


def policy_of(name: str, sglang: SglangSettings | None = None) -> MakePolicy:
    """A factory for the scheduler of this name; ``sglang`` are the settings that only SGLang has."""
    if name == "sglang":
        return lambda limits, names, plain: SglangScheduler(limits, names, sglang, plain=plain)
    return POLICIES[name]


__all__ = ["POLICIES", "MakePolicy", "Policy", "SglangSettings", "policy_of"]
