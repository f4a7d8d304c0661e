"""Planners by name. They ask the driver how long plans would take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from steelyard.balance.encoding import ADDED_LATER
from steelyard.balance.plan.buckets import Frontier
from steelyard.balance.plan.change import LengthsChanged, Payback
from steelyard.balance.plan.libra import libra
from steelyard.balance.plan.makespan import ReplicaModel
from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.plain import OneAtATime, ProportionalPlanner, Searching
from steelyard.balance.plan.planning import Planning
from steelyard.balance.plan.questions import PlanAnswers
from steelyard.balance.plan.search import Search
from steelyard.balance.plan.simulated import Simulated, oracle
from steelyard.balance.plan.world import Mode, Plan, Planner, TrainOption, World

PlannerName = Literal[
    "proportional", "one-at-a-time", "libra-published", "libra", "search", "simulated", "oracle"
]  # planners that plan during a run
MODEL_PLANNERS: Mapping[str, Callable[[World], Planner]] = {
    "proportional": ProportionalPlanner,
    "one-at-a-time": OneAtATime,
    "libra-published": lambda world: Searching(libra(world, published=True)),
    "libra": lambda world: Searching(libra(world)),
    "search": lambda world: Searching(Search(world)),
}
"""Planners that use a model alone and simulate nothing."""
SIMULATED_PAYBACK = Payback(margin=0.02, horizon=20)
"""For simulated plans, chosen by hand instead of Libra's 5 % and 10 steps. Simulations distinguish plans down to 2 % of
a step (`simulated.py`), so small gains are real. They plan only when lengths have changed (`LengthsChanged`), so a plan
is in force for longer."""


@dataclass(frozen=True, slots=True)
class PlannerSettings:
    """A planner's name and what does not change from step to step, in plain numbers; fields as in `World`."""

    name: PlannerName
    gpus: int
    mode: Mode
    replicas: tuple[tuple[int, ReplicaModel], ...]  # by degree
    options: tuple[TrainOption, ...]
    written: Plan  # the plan in force when the run begins
    batches_at_once: int = 1
    by_length: bool = True
    exchange: tuple[float, ...] = field(default=(), metadata=ADDED_LATER)  # of each option, for Libra's planners

    def planning(self, forms_pool: bool) -> Planning:
        """The part of the core that plans."""
        answers = PlanAnswers(self.options)
        world = World(
            self.gpus,
            self.mode,
            dict(self.replicas),
            self.options,
            answers.train,
            answers.sync,
            batches_at_once=self.batches_at_once,
            by_length=self.by_length,
            exchange=dict(zip(self.options, self.exchange, strict=bool(self.exchange))),
        )
        shared: list[object] = []
        planner = self._planner(world, answers, shared)
        return Planning(world, planner, answers, self.written, forms_pool, shared=tuple(shared))

    def _planner(self, world: World, answers: PlanAnswers, shared: list[object]) -> Planner:
        if self.name in MODEL_PLANNERS:
            planner = MODEL_PLANNERS[self.name](world)
            if isinstance(planner, Searching):
                kept = LastFrontier(planner.search.frontier)
                shared.append(kept)
                planner.search.frontier = kept
            return planner
        simulated = Simulated(
            world,
            answers.step,
            answers.longer_step,
            glance=answers.rollout,
            least=answers.least,
            change=answers.switch,
            triggers=LengthsChanged(),
            payback=SIMULATED_PAYBACK,
            look=answers.look,
        )
        shared.append(simulated._frontiers)
        if self.name == "simulated":
            return simulated
        bound = oracle(simulated, lambda state: state.measured)
        return replace(bound, payback=SIMULATED_PAYBACK, look=answers.look)


class LastFrontier:
    """Makes frontiers and caches the last one: a planner that is restarted needs the same one."""

    def __init__(self, make: Callable[[World, Measured], Frontier]) -> None:
        self._make = make
        self._measured: Measured | None = None
        self._frontier: Frontier | None = None

    def __call__(self, world: World, measured: Measured) -> Frontier:
        if self._frontier is None or self._measured is not measured:
            self._measured, self._frontier = measured, self._make(world, measured)
        return self._frontier
