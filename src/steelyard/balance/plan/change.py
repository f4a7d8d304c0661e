"""When to plan again, whether a change pays, and the ratio of measured to predicted times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum, sqrt
from typing import Protocol

from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.search import StageFactors
from steelyard.balance.plan.world import Plan, PlannerState, World
from steelyard.balance.pool.learnt import SWITCH_SECONDS, Learnt


class Trigger(Protocol):
    """Decides when to plan again."""

    def due(self, state: PlannerState, last: PlannerState | None) -> bool:
        """Whether to plan now; ``last`` is the state of the last time."""


@dataclass(frozen=True, slots=True)
class Triggers:
    """Libra's triggers (arXiv 2606.03077): every few steps, and when queue, seats, rejections or stage times exceed
    limits."""

    every: int = 5
    queued: float = 0.75
    active: float = 0.85
    ratio: float = 1.25

    def due(self, state: PlannerState, last: PlannerState | None) -> bool:
        if last is None or state.plan is None or state.step - last.step >= self.every:
            return True
        slow, fast = max(state.train, state.rollout), min(state.train, state.rollout)
        apart = fast > 0 and slow >= self.ratio * fast
        return bool(state.queued >= self.queued or state.active >= self.active or state.rejected or apart)


@dataclass(frozen=True, slots=True)
class LengthsChanged:
    """Our trigger, for planners that simulate: at the start, when the number of known trajectories has doubled, and
    when lengths have changed significantly, by more than a share of their mean.

    Trajectories of one prompt are correlated, so the variance is taken over prompts. Lengths are skewed and every step
    is a test, so three standard errors would give too many false alarms.
    """

    share: float = 0.05
    sigmas: float = 4.0

    def due(self, state: PlannerState, last: PlannerState | None) -> bool:
        if last is None or state.plan is None or 0 < 2 * last.seen <= state.seen:
            return True
        return self.apart(state.measured, last.measured)

    def apart(self, now: Measured, then: Measured) -> bool:
        """Whether the mean length, context or tool time has changed."""
        return any(
            self._apart(now.by_prompt(here), then.by_prompt(there))
            for here, there in ((now.generated, then.generated), (now.context, then.context), (now.tools, then.tools))
        )

    def _apart(self, here: Sequence[float], there: Sequence[float]) -> bool:
        (mean, variance), (before, variance_before) = _moments(here), _moments(there)
        gap, error = abs(mean - before), sqrt(variance / len(here) + variance_before / len(there))
        return gap > self.share * before and gap > self.sigmas * error


def _moments(values: Sequence[float]) -> tuple[float, float]:
    """Mean and variance."""
    mean = fsum(values) / len(values)
    return mean, fsum((each - mean) * (each - mean) for each in values) / len(values)


@dataclass(frozen=True, slots=True)
class Payback:
    """A change must gain a share of a step, above noise, and more than its cost within a horizon."""

    margin: float = 0.05
    horizon: int = 10  # steps for which lengths are expected to stay about the same
    switch: float = SWITCH_SECONDS  # seconds of a change, before any was measured

    def pays(self, now: float, then: float, state: PlannerState, change: float | None = None) -> bool:
        """Whether a change from steps of ``now`` seconds to ``then`` pays. ``change`` is its cost; by default that of
        measured changes."""
        gain, steps = now - then, self.horizon if state.left is None else min(self.horizon, state.left)
        return gain >= self.margin * now and steps * gain > (self.seconds(state) if change is None else change)

    def steps(self, state: PlannerState) -> int:
        """Steps within which a change has to pay; at least one."""
        return max(1, self.horizon if state.left is None else min(self.horizon, state.left))

    def seconds(self, state: PlannerState) -> float:
        """Expected seconds of a change, from measured ones."""
        learnt = Learnt(self.switch)
        for measured in state.switches:
            learnt.take(measured)
        return learnt.mean


@dataclass
class Experience:
    """Ratios of measured to predicted stage times, which correct predictions."""

    _train: Learnt = field(default_factory=lambda: Learnt(1.0))
    _rollout: Learnt = field(default_factory=lambda: Learnt(1.0))

    def take(self, state: PlannerState, bare: Plan) -> None:
        """``bare`` is the prediction for the plan in force and the measured trajectories, uncorrected."""
        if state.train > 0 and bare.train > 0:
            self._train.take(state.train / bare.train)
        if state.rollout > 0 and bare.rollout > 0:
            self._rollout.take(state.rollout / bare.rollout)

    @property
    def factors(self) -> StageFactors:
        return StageFactors(self._train.mean, self._rollout.mean)


def step_seconds(world: World, plan: Plan, state: PlannerState) -> float:
    """Seconds of a step from its measured stages; as predicted if none were measured."""
    if state.train <= 0 or state.rollout <= 0:
        return plan.step
    return world.step_seconds(state.train, state.rollout, plan.training, plan.buckets)
