"""The recommended split of a scenario's GPUs, and what a step takes with it.

Large clusters are planned by a part (`part.py`). A plan is chosen on the batches of the first steps, and predicted on
batches of other seeds: of many plans, the best on some batches is often the one that suits just these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from steelyard.balance.plan import Plan, PlannerState
from steelyard.balance.plan.by_name import MODEL_PLANNERS
from steelyard.balance.plan.forecast import predicted
from steelyard.errors import blaming
from steelyard.posttrain.choosing import Chosen
from steelyard.posttrain.part import enlarged, evenly, part_of, parts_of
from steelyard.posttrain.plan_simulator import LEARNT_TRAJECTORIES, SIMULATED, PlanSimulator, best_plan
from steelyard.posttrain.planning import as_written
from steelyard.posttrain.recent import Batch
from steelyard.posttrain.run import choose_way
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.sim.student import quantile
from steelyard.workload.trajectories.tasks import trajectories_of

_ENOUGH = 2048  # trajectories per step that are enough to compare plans
_TRIED = 2  # batches that a plan is chosen on
_DRAWS = 4  # seeds that it is predicted on
CONFIDENCE = 0.9

Watch = Callable[[int], None]
Seconds = Callable[[Plan, Sequence[Batch]], float]


@dataclass(frozen=True)
class Prediction:
    """Seconds of a settled step, one figure for each seed: the mean step over some batches of it."""

    draws: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.draws)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the figure of another seed is expected to be (a prediction interval by Student's t)."""
        count = len(self.draws)
        wide = quantile(CONFIDENCE, count - 1) * stdev(self.draws) * sqrt(1 + 1 / count)
        return max(0.0, self.mean - wide), self.mean + wide


@dataclass(frozen=True)
class Advice:
    """A plan, whether it was simulated or comes from a model, the sources of its times, the scenario with it, and the
    step that is predicted for other seeds, if that was asked for."""

    plan: Plan
    simulated: bool
    times_from: Mapping[str, Any]
    scenario: PosttrainScenario
    predicted: Prediction | None
    chosen: Chosen | None = None  # the way, if the scenario has an objective


def plan(
    scenario: PosttrainScenario,
    enough: int = _ENOUGH,
    draws: int = _DRAWS,
    watch: Watch = lambda made: None,
) -> Advice:
    """The best split of a scenario's GPUs for the trajectories of its first steps. With an objective, the way to run it
    is chosen first.

    If the scenario names a planner with a model, by that model. Otherwise by simulation of the smallest share of the
    scenario that has ``enough`` trajectories. The step is predicted on ``draws`` other seeds (two or more; 0 for no
    prediction). ``watch`` is called with the number of simulations so far.
    """
    chosen = None
    if scenario.objective is not None:
        chosen = choose_way(scenario, watch)
        scenario = chosen.scenario
    setup = set_up_posttrain(scenario, any_degree=True)
    simulator = PlanSimulator(setup, watch)
    with blaming(scenario.source):
        found, seconds = _best(simulator, enough, watch)
        others = [_batches(scenario, scenario.seed + number + 1, SIMULATED) for number in range(draws)]
        expected = Prediction(tuple(seconds(found, batches) for batches in others)) if others else None
    planned = as_written(setup, simulator.training, found)
    times_from = setup.times_from(planned.training)
    simulated = scenario.planner not in MODEL_PLANNERS
    return Advice(found, simulated, times_from, planned.scenario.replace(planner="given"), expected, chosen)


def _batches(scenario: PosttrainScenario, seed: int, count: int) -> list[Batch]:
    tasks = trajectories_of(scenario.trajectories, seed, scenario.base_dir)
    return [list(tasks.step(step)) for step in range(count)]


def _best(whole: PlanSimulator, enough: int, watch: Watch) -> tuple[Plan, Seconds]:
    """The best plan, and what predicts its step on other batches."""
    scenario = whole.setup.scenario
    batches = _batches(scenario, scenario.seed, _TRIED)
    if scenario.planner in MODEL_PLANNERS:
        modelled = MODEL_PLANNERS[scenario.planner](whole.world).plan(PlannerState(0, whole.measured(batches[0])))
        assert modelled is not None, "there was none before it"
        return modelled, lambda plan, on: fmean(predicted(whole.world, plan, whole.measured(each)).step for each in on)
    for times in parts_of(scenario, enough):
        part = part_of(scenario, times)
        if part is not None:
            return _by_part(PlanSimulator(part, watch), whole, times, batches)
    return best_plan(whole, batches), lambda plan, on: whole.step_seconds(plan, on, on[0][:LEARNT_TRAJECTORIES])


def _by_part(part: PlanSimulator, whole: PlanSimulator, times: int, batches: Sequence[Batch]) -> tuple[Plan, Seconds]:
    group = whole.setup.scenario.trajectories.group
    small = best_plan(part, [evenly(each, group, times) for each in batches])

    def seconds(plan: Plan, on: Sequence[Batch]) -> float:
        less = [evenly(each, group, times) for each in on]
        rolled = part.step_seconds(small, less, less[0][:LEARNT_TRAJECTORIES])
        return max(rolled, whole.least_seconds(plan, on))

    return enlarged(small, times, part, whole, batches[0]), seconds
