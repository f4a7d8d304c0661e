"""Planners without simulation: static, by a model, proportional to measured work, and one change at a time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from steelyard.balance.plan.change import Experience, Payback, Triggers, step_seconds
from steelyard.balance.plan.forecast import predicted, simple
from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.search import Search
from steelyard.balance.plan.world import Plan, Planner, PlannerState, World
from steelyard.errors import UserError


@dataclass
class Static:
    """Keeps the first plan of another planner: the static bound."""

    planner: Planner
    _asked: bool = False

    def plan(self, state: PlannerState) -> Plan | None:
        if self._asked:
            return None
        self._asked = True
        return self.planner.plan(state)


@dataclass
class Searching:
    """The best plan by a model, when a trigger fires and the change pays. Measured stage times correct the model."""

    search: Search
    triggers: Triggers = field(default_factory=Triggers)
    payback: Payback = field(default_factory=Payback)
    _experience: Experience = field(default_factory=Experience)
    _last: PlannerState | None = None

    def plan(self, state: PlannerState) -> Plan | None:
        world = self.search.world
        if state.plan is not None:
            self._experience.take(state, predicted(world, state.plan, state.measured))
        if not self.triggers.due(state, self._last):
            return None
        self._last = state
        factors = self._experience.factors
        best = self.search.best(state.measured, factors)
        if state.plan is None:
            return best
        now = predicted(world, state.plan, state.measured, factors)
        if best.layout == now.layout or not self.payback.pays(now.step, best.step, state):
            return None
        return replace(best, instead=now.step)


@dataclass
class ProportionalPlanner:
    """Gives each stage GPUs in proportion to its measured GPU-seconds; rollout has one degree."""

    world: World
    tp: int | None = None  # degree of rollout; by default the least that holds the longest trajectory
    triggers: Triggers = field(default_factory=Triggers)
    payback: Payback = field(default_factory=Payback)
    _last: PlannerState | None = None

    def plan(self, state: PlannerState) -> Plan | None:
        if not self.triggers.due(state, self._last):
            return None
        self._last = state
        world, now = self.world, state.plan
        if now is None:
            return split_at(world, world.gpus / 2, self._degree(state.measured), state.measured)
        train, rollout = state.train * now.training.gpus, state.rollout * now.rollout_gpus
        if train <= 0 or rollout <= 0:
            return None
        wanted = world.gpus * train / (train + rollout)
        then = split_at(world, wanted, self._degree(state.measured), state.measured)
        if then.layout == now.layout:
            return None
        guess = world.together(train / then.training.gpus, rollout / then.rollout_gpus)
        taken = step_seconds(world, now, state)
        return replace(then, step=guess, instead=taken) if self.payback.pays(taken, guess, state) else None

    def _degree(self, measured: Measured) -> int:
        return least_degree(self.world, measured) if self.tp is None else self.tp


@dataclass
class OneAtATime:
    """After verl's dynamic schedule: the next larger or smaller training job, while one stage is clearly slower."""

    world: World
    tp: int | None = None
    ratio: float = 1.1  # of the stages, above which GPUs move
    every: int = 1
    _last: int | None = None

    def plan(self, state: PlannerState) -> Plan | None:
        world, now = self.world, state.plan
        degree = least_degree(world, state.measured) if self.tp is None else self.tp
        if now is None:
            return split_at(world, world.gpus / 2, degree, state.measured)
        if self._last is not None and state.step - self._last < self.every:
            return None
        self._last = state.step
        if min(state.train, state.rollout) <= 0:
            return None
        counts = {each.gpus for each in world.options if world.rollout_gpus(each) >= degree}
        if state.train >= self.ratio * state.rollout:
            wanted = min((gpus for gpus in counts if gpus > now.training.gpus), default=None)
        elif state.rollout >= self.ratio * state.train:
            wanted = max((gpus for gpus in counts if gpus < now.training.gpus), default=None)
        else:
            return None
        if wanted is None:
            return None
        then = split_at(world, wanted, degree, state.measured)
        return replace(then, instead=predicted(world, now, state.measured).step)


def split_at(world: World, wanted: float, tp: int, measured: Measured) -> Plan:
    """The fastest training layout on the number of GPUs nearest to ``wanted``; all other GPUs roll out."""
    longest = int(measured.context.max())
    usable = [each for each in world.options if world.rollout_gpus(each) >= tp and each.budget >= longest]
    if not usable:
        raise UserError(f"planner: no training layout leaves {tp} of {world.gpus} GPUs to roll out")
    gpus = min((each.gpus for each in usable), key=lambda each: (abs(each - wanted), each))
    plans = [simple(world, each, tp, measured) for each in usable if each.gpus == gpus]
    best = min((plan for plan in plans if plan is not None), key=lambda plan: plan.train)
    return replace(best, why=f"{wanted:.1f} GPUs were wanted for training")


def least_degree(world: World, measured: Measured) -> int:
    """The least degree that holds the longest trajectory; the highest if none does."""
    longest = int(measured.context.max())
    holding = [tp for tp, model in world.replicas.items() if model.capacity >= longest]
    return min(holding, default=max(world.replicas))
