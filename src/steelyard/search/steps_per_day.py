"""The smallest cluster whose post-training makes so many steps a day."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from steelyard.balance.plan import Measured, Plan, Search
from steelyard.errors import UserError
from steelyard.posttrain.advice import plan as planned
from steelyard.posttrain.planning import Training, as_written, planner_mode, world_of
from steelyard.posttrain.run import drive
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.scenario.posttrain import PosttrainScenario

_DAY = 86_400.0  # seconds
_MOST_GPUS = 4096
_GAIN = 1.005  # of twice the GPUs, below which more of them are no use


@dataclass(frozen=True)
class DailySteps:
    """A number of GPUs, its recommended plan, and the steps a day that a simulation of it makes."""

    gpus: int
    steps: float
    plan: Plan | None = None
    refused: str = ""  # why nothing can run on so few


@dataclass(frozen=True)
class StepsAnswer:
    """The smallest number of GPUs that makes the wanted steps a day; None if no number does."""

    wanted: float
    found: DailySteps | None
    less: DailySteps | None  # the size below it; without an answer, the best there is


def gpus_for_steps(
    scenario: PosttrainScenario, wanted: float, watch: Callable[[int], None] = lambda made: None
) -> StepsAnswer:
    """The smallest size, in whole nodes or parts of one, with the recommended plan at each size.

    A model of plans finds sizes to begin with. What counts is the simulation of the plan that `steelyard plan` gives.
    ``watch`` is called with the number of plans simulated so far.
    """
    sizes = _Sizes(scenario, watch)
    place = sizes.guess(wanted)
    first = sizes.simulated(place)
    if first.steps:
        place = sizes.guess(wanted * sizes.modelled(place) / first.steps)  # by as much as the model was off
    less, enough = _bounds(sizes, place, wanted)
    if enough is None:
        return StepsAnswer(wanted, None, sizes.simulated(less))
    while enough - less > 1:
        middle = (enough + less) // 2
        less, enough = (middle, enough) if sizes.simulated(middle).steps < wanted else (less, middle)
    return StepsAnswer(wanted, sizes.simulated(enough), sizes.simulated(less) if less >= 0 else None)


def _bounds(sizes: _Sizes, place: int, wanted: float) -> tuple[int, int | None]:
    """A place that is too small and one that is enough, looked for from a guess in growing steps; None if none is."""
    step = 1
    if sizes.simulated(place).steps < wanted:
        less = place
        while less < sizes.last:
            more = min(sizes.last, less + step)
            if sizes.simulated(more).steps >= wanted:
                return less, more
            less, step = more, 2 * step
        return less, None
    while place > 0:
        fewer = max(0, place - step)
        if sizes.simulated(fewer).steps < wanted:
            return fewer, place
        place, step = fewer, 2 * step
    return -1, place


class _Sizes:
    """Sizes of a cluster, by their place in rising order: parts of a node, then whole nodes."""

    def __init__(self, scenario: PosttrainScenario, watch: Callable[[int], None]) -> None:
        self._scenario, self._watch = scenario, watch
        self._setup = set_up_posttrain(scenario, any_degree=True)
        self._measured = Measured.of(list(self._setup.tasks.step(0)), scenario.trajectories.group)
        node = self._setup.topology.gpus_per_node
        parts = [gpus for gpus in (1, 2, 4, 8, 16, 32, 64) if gpus < node]
        self.gpus = [*parts, *range(node, _MOST_GPUS + 1, node)]
        self.last = len(self.gpus) - 1  # the largest that is of use
        self.modelled = cache(self._modelled)
        self.simulated = cache(self._simulated)

    def guess(self, wanted: float) -> int:
        """The first place that makes so many steps a day by the model; the last of use if none does."""
        less, enough = -1, 0
        while self.modelled(enough) < wanted:
            less, before = enough, self.modelled(enough)
            if enough == self.last:
                return enough
            enough = min(self.last, 2 * enough + 1)
            if before and self.modelled(enough) < _GAIN * before:
                self.last = enough
                return enough
        while enough - less > 1:
            middle = (enough + less) // 2
            less, enough = (middle, enough) if self.modelled(middle) < wanted else (less, middle)
        return enough

    def _plan(self, place: int) -> tuple[Plan, PosttrainScenario]:
        """The model's plan for a size, and the scenario with it."""
        gpus = self.gpus[place]
        training = Training(self._setup, gpus)
        world = world_of(self._setup, training, gpus, planner_mode(self._scenario))
        plan = Search(world).best(self._measured)
        return plan, as_written(self._setup, training, plan).scenario

    def _modelled(self, place: int) -> float:
        try:
            return _DAY / self._plan(place)[0].step
        except UserError:  # nothing fits on so few
            return 0.0

    def _simulated(self, place: int) -> DailySteps:
        try:
            advice = planned(self._plan(place)[1], draws=0, watch=self._watch)
            run = drive(advice.scenario)
        except UserError as error:
            return DailySteps(self.gpus[place], 0.0, refused="; ".join(error.args))
        return DailySteps(self.gpus[place], _DAY / run.loop.record.settled_step, advice.plan)
