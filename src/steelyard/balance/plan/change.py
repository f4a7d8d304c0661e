"""When to plan anew, whether a change pays, and how far foretold times were from measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import fsum, sqrt
from typing import Protocol

from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.search import Factors
from steelyard.balance.plan.world import Plan, State, World
from steelyard.balance.pool.learnt import Learnt


class Trigger(Protocol):
    """Says when to plan."""

    def due(self, state: State, last: State | None) -> bool:
        """``last`` is what was known when it was planned before."""


@dataclass(frozen=True, slots=True)
class Triggers:
    """Libra's: every so many steps, and at once when queues, seats, rejections or the stages' ratio say so."""

    every: int = 5
    queued: float = 0.75
    active: float = 0.85
    ratio: float = 1.25

    def due(self, state: State, last: State | None) -> bool:
        if last is None or state.plan is None or state.step - last.step >= self.every:
            return True
        slow, fast = max(state.train, state.rollout), min(state.train, state.rollout)
        apart = fast > 0 and slow >= self.ratio * fast
        return bool(state.queued >= self.queued or state.active >= self.active or state.rejected or apart)


@dataclass(frozen=True, slots=True)
class Moved:
    """Ours, where planning takes simulations: once at first, again when twice as many trajectories can be looked at,
    and when they have become longer or shorter than those that were planned for, by a share of their mean and by more
    than chance explains. Chance draws prompts: answers to the same one are alike. Every step is looked at, and lengths
    are skewed: three deviations would be a false alarm too often."""

    share: float = 0.05
    sigmas: float = 4.0

    def due(self, state: State, last: State | None) -> bool:
        if last is None or state.plan is None or 0 < 2 * last.seen <= state.seen:
            return True
        return self.apart(state.measured, last.measured)

    def apart(self, now: Measured, then: Measured) -> bool:
        """Whether trajectories have become longer or shorter than others were."""
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
    """A change must gain a share of a step, so that noise moves nothing, and earn what it costs within a horizon."""

    margin: float = 0.05
    horizon: int = 10  # steps that lengths are expected to stay much the same for
    switch: float = 15.0  # seconds that a change takes, until some were measured

    def pays(self, now: float, then: float, state: State, change: float | None = None) -> bool:
        """Whether steps of ``then`` seconds are worth changing to from those of ``now``; ``change`` is what that takes,
        by those measured if not given."""
        gain, steps = now - then, self.horizon if state.left is None else min(self.horizon, state.left)
        return gain >= self.margin * now and steps * gain > (self.seconds(state) if change is None else change)

    def seconds(self, state: State) -> float:
        """What a change takes, by those measured."""
        learnt = Learnt(self.switch)
        for measured in state.switches:
            learnt.take(measured)
        return learnt.mean


@dataclass
class Experience:
    """Measured stage times against foretold ones; plans are foretold with the same factors."""

    _train: Learnt = field(default_factory=lambda: Learnt(1.0))
    _rollout: Learnt = field(default_factory=lambda: Learnt(1.0))

    def take(self, state: State, bare: Plan) -> None:
        """``bare`` is what the plan in force was to take for the measured trajectories, without any factor."""
        if state.train > 0 and bare.train > 0:
            self._train.take(state.train / bare.train)
        if state.rollout > 0 and bare.rollout > 0:
            self._rollout.take(state.rollout / bare.rollout)

    @property
    def factors(self) -> Factors:
        return Factors(self._train.mean, self._rollout.mean)


def step_seconds(world: World, plan: Plan, state: State) -> float:
    """What a step took by its measured stages; what it was to take if none were measured."""
    if state.train <= 0 or state.rollout <= 0:
        return plan.step
    return world.step_seconds(state.train, state.rollout, plan.training, plan.buckets)
