"""Chooses the way to run a scenario by the user's objective.

Every way of a short list is simulated on trajectories of another seed, and the best by the objective is taken. Ways
with the same stages to balance are simulated on one split of the GPUs, which is the best for the first of them. Large
batches are simulated in part. Ways close to the best are simulated with a further seed, so that it can be said how sure
the choice is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from steelyard.balance.plan import Plan
from steelyard.collector import collector_off
from steelyard.errors import UserError
from steelyard.posttrain.part import parts_of, scaled
from steelyard.posttrain.plan_simulator import PlanSimulator, best_plan
from steelyard.posttrain.planning import as_written
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.posttrain.ways import WAYS, Way, written
from steelyard.scenario.posttrain import Objective, PosttrainScenario

ENOUGH = 1024  # trajectories per step that are enough to compare ways
STEPS = 15  # of a simulation: six of them count, which is a round of batches that begin by two or by three
_EVEN = 0.005  # ways that differ by no more count as equally good
CLOSE = 0.1  # ways this close to the best are simulated with both seeds
_PLANNED_ON = 2  # batches

Simulate = Callable[[PosttrainScenario], Mapping[str, Any]]
"""The summary of a run."""


@dataclass(frozen=True)
class Tried:
    """What a way came to, seed by seed, or why it cannot be run; and the layouts that it was simulated with."""

    way: str
    tokens: Sequence[float] = ()  # per second
    fresh: Sequence[float] = ()  # samples per second, stale ones counted as what they are worth
    layout: Mapping[str, Any] = field(default_factory=dict)  # keys of the whole scenario
    refused: str = ""

    def speeds(self, objective: Objective) -> Sequence[float]:
        """Its speed by an objective. All ways have the same GPUs, so the soonest reward is the cheapest."""
        return self.tokens if objective == "throughput" or not self.fresh else self.fresh

    def speed(self, objective: Objective) -> float:
        """The mean of these; 0 if it cannot be run."""
        found = self.speeds(objective)
        return sum(found) / len(found) if found else 0.0


@dataclass(frozen=True)
class Chosen:
    """The scenario in the chosen way, and what all ways came to, best first."""

    objective: Objective
    scenario: PosttrainScenario
    tried: tuple[Tried, ...]

    @property
    def lead(self) -> float | None:
        """By how much the chosen way is ahead of the next; None if it is alone."""
        first, *others = (each.speed(self.objective) for each in self.tried)
        return first / others[0] - 1 if others and others[0] else None

    @property
    def sure(self) -> bool:
        """Whether it is ahead of the next with every seed that both were simulated with."""
        first, *others = (each.speeds(self.objective) for each in self.tried)
        return not others or all(mine >= its for mine, its in zip(first, others[0], strict=False))

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "objective": self.objective,
            "way": self.tried[0].way,
            "lead": self.lead,
            "sure": self.sure,
            "ways": [asdict(each) for each in self.tried],
        }


def choose(scenario: PosttrainScenario, objective: Objective, tried: Sequence[Tried]) -> Chosen:
    """The scenario in the way that is best by an objective. It begins with the split that this was simulated with."""
    ranked = _ranked(tried, objective)
    best = ranked[0]
    way = next(each for each in WAYS if each.name == best.way)
    plain = written(scenario, way)
    begun = plain.replace(
        rollout=best.layout["rollout"],
        training={**plain.training.model_dump(mode="json"), **best.layout["training"]},
        planner="given" if way.shared else plain.planner,
    )
    return Chosen(objective, begun if begun.gpus == scenario.gpus else plain, ranked)


def _ranked(tried: Sequence[Tried], objective: Objective) -> tuple[Tried, ...]:
    """Best first. Of ways as good as the best, the one that is best by the other measure comes first."""
    by_speed = sorted(tried, key=lambda each: -each.speed(objective))
    level = (1 - _EVEN) * by_speed[0].speed(objective)
    other: Objective = "reward" if objective == "throughput" else "throughput"
    first = max((each for each in by_speed if each.speed(objective) >= level), key=lambda each: each.speed(other))
    return (first, *(each for each in by_speed if each is not first))


def try_ways(scenario: PosttrainScenario, simulate: Simulate, ways: Sequence[Way] = WAYS) -> tuple[Tried, ...]:
    """Simulate ways on the smallest part of a scenario that any of them can be run on."""
    found: tuple[Tried, ...] = ()
    for times in (*parts_of(scenario, ENOUGH), 1):
        try:
            part = scaled(scenario, 1 / times)
        except UserError:
            continue
        found = _Trials(part, times, simulate).all(ways)
        if any(each.tokens for each in found):
            return found
    raise UserError(*(f"{each.way}: {each.refused}" for each in found))


class _Trials:
    """Simulations of ways on a part of a scenario, of which the whole is ``times`` as much."""

    def __init__(self, part: PosttrainScenario, times: int, simulate: Simulate) -> None:
        self._part, self._times, self._simulate = part.replace(steps=STEPS), times, simulate
        self._planned: dict[bool, Mapping[str, Any]] = {}  # by whether stages share GPUs

    def all(self, ways: Sequence[Way]) -> tuple[Tried, ...]:
        """All ways with a first seed, and those close to the best with a second."""
        found = [self._first(way) for way in ways]
        objectives: tuple[Objective, ...] = ("throughput", "reward")
        least = {each: (1 - CLOSE) * max(one.speed(each) for one in found) for each in objectives}
        close = [any(one.tokens and one.speed(each) >= least[each] for each in objectives) for one in found]
        if sum(close) > 1:
            found = [self._again(way, one) if near else one for way, one, near in zip(ways, found, close, strict=True)]
        return tuple(found)

    def _first(self, way: Way) -> Tried:
        try:
            scenario = written(self._part.replace(seed=self._part.seed + 1), way)
            layout = self._planned.get(way.shared) or self._plan(scenario)
            self._planned[way.shared] = layout
            tokens, fresh = self._run(scenario, layout)
        except UserError as error:
            return Tried(way.name, refused=str(error))
        whole = {
            "rollout": [{**each, "replicas": self._times * each["replicas"]} for each in layout["rollout"]],
            "training": {**layout["training"], "dp": self._times * layout["training"]["dp"]},
        }
        return Tried(way.name, (tokens,), fresh, whole)

    def _again(self, way: Way, tried: Tried) -> Tried:
        scenario = written(self._part.replace(seed=self._part.seed + 2), way)
        tokens, fresh = self._run(scenario, self._planned[way.shared])
        return replace(tried, tokens=(*tried.tokens, tokens), fresh=(*tried.fresh, *fresh))

    def _plan(self, scenario: PosttrainScenario) -> Mapping[str, Any]:
        """The best split for the first batches."""
        setup = set_up_posttrain(scenario, any_degree=True)
        simulator = PlanSimulator(setup)
        batches = [list(setup.tasks.step(step)) for step in range(_PLANNED_ON)]
        plan: Plan = best_plan(simulator, batches, confirm=False)
        planned = as_written(setup, simulator.training, plan).scenario
        return planned.model_dump(mode="json", include={"rollout", "training"})

    def _run(self, scenario: PosttrainScenario, layout: Mapping[str, Any]) -> tuple[float, tuple[float, ...]]:
        with collector_off():  # a loop and its engines refer to each other: when it ends here, they are free
            summary = self._simulate(scenario.replace(planner="given", **layout))
        fresh = (summary["effective"]["samples_per_second"],) if "effective" in summary else ()
        return summary["settled_tokens_per_second"], fresh
