"""verl's dynamic schedule: when trainers' GPUs also roll out, and how many samples they make before training begins.

Hybrid replicas and training share GPUs, so they take turns. Standalone replicas generate all the time. Between two
weight syncs the trainer makes ``trigger_parameter_sync_step`` steps and collects samples before each. Hybrid replicas
pay if the time that trainers would wait for samples shrinks by more than a switch takes.

``verl_plugin`` registers the policy. This module needs neither Ray nor verl until replicas are counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Any, Protocol

from steelyard.balance.pool.learnt import Learnt

log = logging.getLogger("steelyard.verl")


class ScheduleContext(Protocol):
    """What this policy reads of verl's ``DynamicScheduleContext``."""

    required_samples: int  # of a step
    step_required_samples: int  # of all steps between two weight syncs
    total_generated_samples: int
    expected_samples: int
    step_wait_times: list[float]
    last_activate_duration_s: float
    last_deactivate_duration_s: float


@dataclass(frozen=True, slots=True)
class CycleSpeeds:
    """From one weight sync to the next: samples per second of standalone replicas, seconds of training, and how many
    times as fast rollout is with hybrid replicas."""

    rate: float
    training: float
    speedup: float

    def wanted(self, samples: int, first: int) -> int:
        """Samples to have before training begins, so that it need not wait: those of its first step, and what
        standalone replicas will not have made when the last step begins."""
        usable = self.training * (1 - first / samples)
        return min(samples, max(first, ceil(samples - self.rate * usable)))

    def saved(self, missing: float) -> float:
        """Seconds that hybrid replicas save if so many samples are missing."""
        return missing / self.rate * (1 - 1 / self.speedup)


@dataclass(slots=True)
class _Cycle:
    """A cycle under way: when it began, all samples made by then, and those of them that were not trained on."""

    at: float
    generated: int
    surplus: int
    wanted: int | None = None  # samples when hybrid replicas stopped; None: there were none
    activation: float = 0.0  # seconds


class HybridSchedule:
    """A policy for ``async_training.dynamic_schedule_policy``.

    It measures one cycle without hybrid replicas first. Until it knows what a switch takes it tries one.
    """

    _rollouter: Any = None  # verl sets it

    def __init__(
        self,
        deactivate_ratio: float = 0.3,
        only_hybrid: bool = False,
        *,
        speedup: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``deactivate_ratio`` counts until a cycle was measured. ``speedup`` is found out if it is not given."""
        self._ratio = deactivate_ratio
        self._only_hybrid = only_hybrid
        self._speedup = speedup
        self._clock = clock
        self._cycle: _Cycle | None = None
        self._rate: Learnt | None = None
        self._training: Learnt | None = None
        self._activation: Learnt | None = None
        self._deactivation: Learnt | None = None

    def should_deactivate(self, global_steps: int, is_hybrid_active: bool, ctx: ScheduleContext) -> bool:
        """Asked before each training step. Training needs the GPUs, so always if they roll out."""
        if self._cycle is None:
            self._cycle = _Cycle(self._clock(), ctx.total_generated_samples, 0)
        return is_hybrid_active

    def deactivate_wait_samples(self, ctx: ScheduleContext) -> int:
        """How many samples hybrid replicas help to make."""
        if self._only_hybrid:
            return ctx.step_required_samples
        speeds = self._speeds()
        if speeds is None:
            return int(ctx.step_required_samples * self._ratio)
        wanted = speeds.wanted(ctx.step_required_samples, ctx.required_samples)
        if self._cycle is not None:
            self._cycle.wanted = wanted
        return wanted

    def should_activate_after_step(self, global_steps: int, is_hybrid_active: bool, ctx: ScheduleContext) -> bool:
        """Asked after the last training step of a cycle, before weights are synced."""
        if self._only_hybrid:
            return True
        surplus = ctx.total_generated_samples - ctx.expected_samples
        self._measure(ctx)
        self._cycle = _Cycle(self._clock(), ctx.total_generated_samples, surplus)
        speeds = self._speeds()
        if speeds is None:
            return False
        missing = speeds.wanted(ctx.step_required_samples, ctx.required_samples) - surplus
        saved = speeds.saved(missing) if missing > 0 else 0.0
        log.info("step %d: %s, %d samples missing, saves %.1f s", global_steps, speeds, missing, saved)
        known = (each.mean for each in (self._activation, self._deactivation) if each is not None)
        return saved > sum(known)

    def update_after_step(self, global_steps: int, ctx: ScheduleContext) -> None:
        """Told after weights are synced: what switching took in this cycle, and at its end."""
        if ctx.last_deactivate_duration_s > 0:
            self._deactivation = _follow(self._deactivation, ctx.last_deactivate_duration_s)
        if ctx.last_activate_duration_s > 0:
            self._activation = _follow(self._activation, ctx.last_activate_duration_s)
            if self._cycle is not None:
                self._cycle.activation = ctx.last_activate_duration_s

    def request_rebalance(self, global_steps: int, ctx: ScheduleContext) -> None:
        """Hybrid replicas are up: have verl abort and resend what standalone ones have, so that all share it."""
        if self._rollouter is None:
            return
        import ray

        try:
            ray.get(self._rollouter.rebalance_requests.remote())
        except ray.exceptions.RayError as problem:  # requests stay where they are
            log.warning("step %d: requests were not rebalanced: %s", global_steps, problem)

    def _measure(self, ctx: ScheduleContext) -> None:
        """Learn from the cycle that ends now. While hybrid replicas were active all were ``speedup`` times as fast."""
        cycle = self._cycle
        if cycle is None:
            return
        seconds = self._clock() - cycle.at
        made = ctx.total_generated_samples - cycle.generated
        together = 0 if cycle.wanted is None else max(0, cycle.wanted - cycle.surplus)
        speedup = self._faster()
        rate = (made - together * (1 - 1 / speedup)) / seconds if seconds > 0 else 0.0
        if rate <= 0:
            return
        others = sum(ctx.step_wait_times) + cycle.activation + ctx.last_deactivate_duration_s
        others += together / (rate * speedup)
        self._rate = _follow(self._rate, rate)
        self._training = _follow(self._training, max(0.0, seconds - others))

    def _speeds(self) -> CycleSpeeds | None:
        if self._rate is None or self._training is None:
            return None
        return CycleSpeeds(self._rate.mean, self._training.mean, self._faster())

    def _faster(self) -> float:
        if self._speedup is None:
            self._speedup = 2.0 if self._rollouter is None else _speedup(self._rollouter)
        return self._speedup


def _follow(learnt: Learnt | None, value: float) -> Learnt:
    if learnt is None:
        return Learnt(value)
    learnt.take(value)
    return learnt


def _speedup(rollouter: Any) -> float:
    """In proportion to replicas, which verl makes all alike."""
    import ray

    asked = [rollouter.get_standalone_replicas.remote(), rollouter.get_all_hybrid_replicas.remote()]
    standalone, hybrid = (len(each) for each in ray.get(asked))
    return 1.0 + hybrid / max(1, standalone)
