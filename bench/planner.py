"""`python -m bench.planner [PRESET [GPUS]]`: what planners choose, predict and get, and their CPU seconds.

Planners see the trajectories of training step 0. What they choose is simulated with those of step 1: engines behind
the default router and estimator, which have learnt step 0, and a training step with its sequences packed as they are.
`python -m bench.planner --speed` measures the search alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from steelyard.balance.beginnings import ByPrompt
from steelyard.balance.core import Core
from steelyard.balance.estimate import SuffixBackoff
from steelyard.balance.placement import Placement
from steelyard.balance.plan import (
    Measured,
    OneAtATime,
    Plan,
    Planner,
    PlannerState,
    ProportionalPlanner,
    Search,
    Searching,
    Simulated,
    Static,
    libra,
    oracle,
)
from steelyard.balance.plan.world import Mode
from steelyard.balance.rounds import BatchRounds, RoundSettings
from steelyard.balance.route.rollout.cost_aware import CostAware
from steelyard.posttrain.driver import Driver
from steelyard.posttrain.planning import Training, world_of
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.setup import DEGREES, PosttrainSetup, set_up_posttrain
from steelyard.records import Trajectory
from steelyard.scenario.posttrain import PosttrainScenario

_TAUGHT = 512  # trajectories that the estimator has learnt
_SETTLED = 12  # steps after which planners that move step by step are taken for settled


def setup_of(preset: str, **more: int) -> PosttrainSetup:
    """Qwen3-14B on A800s: engines of every degree, and a preset's trajectories."""
    return set_up_posttrain(
        PosttrainScenario.model_validate(
            {
                "model": "qwen3-14b",
                "gpu": "a800",
                "trajectories": {"preset": preset, **more},
                "rollout": [{"tp": tp, "replicas": 1} for tp in DEGREES],
                "training": {"tp": 4, "dp": 2},
            }
        )
    )


def rolled_out(
    setup: PosttrainSetup, plan: Plan, trajectories: Sequence[Trajectory], known: Sequence[Trajectory]
) -> float:
    """Seconds until the last of some trajectories has ended on a plan's replicas; ``known`` were learnt from before."""
    estimator, beginnings = SuffixBackoff(), ByPrompt()
    for each in known:
        estimator.learn(each)
        beginnings.learn(each)
    speeds = {tp: kind.speed() for tp, kind in setup.kinds.items()}
    placement = Placement(CostAware(speeds), estimator, beginnings)
    return last_end(
        setup, placement, [tp for tp, replicas in plan.replicas.items() for _ in range(replicas)], trajectories
    )


def last_end(
    setup: PosttrainSetup, placement: Placement, degrees: Iterable[int], trajectories: Sequence[Trajectory]
) -> float:
    """Seconds until the last of some trajectories has ended on replicas of these degrees."""
    core = Core(placement, BatchRounds(RoundSettings(1, 1, 1)))  # which has nothing to do: they are in no group
    stage = RolloutStage(Driver(core), setup.kinds, setup.scenario.engine.block_size)
    for number, tp in enumerate(degrees):
        stage.add(number, tp, 0.0)
    stage.begin([(each, "") for each in trajectories], 0.0, 0)
    stage.run()
    return stage.record.last_end


class Case:
    """One preset on so many GPUs: what is measured, what comes next, and both simulated."""

    def __init__(self, preset: str, gpus: int) -> None:
        self.setup = setup_of(preset)
        self.training = Training(self.setup, gpus)
        self.world = world_of(self.setup, self.training, gpus)
        group = self.setup.scenario.trajectories.group
        self.batches = [list(self.setup.tasks.step(step)) for step in (0, 1)]
        self.measured = [Measured.of(batch, group) for batch in self.batches]
        self._known: dict[tuple[object, int], tuple[float, float]] = {}

    def stages(self, plan: Plan, step: int) -> tuple[float, float]:
        """(training, rollout), simulated."""
        key = plan.layout, step
        if key not in self._known:
            train = self.training.seconds(plan.training, self.measured[step].context, "best-fit")
            self._known[key] = train, rolled_out(self.setup, plan, self.batches[step], self.batches[0][:_TAUGHT])
        return self._known[key]

    def step(self, plan: Plan, step: int) -> float:
        """A whole step, simulated."""
        return self.world.together(*self.stages(plan, step)) + self.world.sync(plan.training, plan.buckets)

    def planners(self) -> dict[str, Callable[[], Planner]]:
        """All of them, made anew."""
        world = self.world
        return {
            "one at a time (verl)": lambda: OneAtATime(world),
            "proportional": lambda: ProportionalPlanner(world),
            "Libra as published": lambda: Searching(libra(world, published=True)),
            "Libra corrected": lambda: Searching(libra(world)),
            "static best": lambda: Static(Searching(Search(world))),
            "simulation in the loop": lambda: Simulated(
                world, lambda plan, _: self.step(plan, 0), glance=lambda plan, _: self.stages(plan, 0)[1]
            ),
            "oracle": lambda: oracle(
                Simulated(world, lambda plan, _: self.step(plan, 1), glance=lambda plan, _: self.stages(plan, 1)[1]),
                lambda _: self.measured[1],
            ),
        }

    def settled(self, planner: Planner) -> Plan:
        """The plan in force once a planner has seen the same trajectories, and the stages they make, a few times."""
        plan, train, rollout = None, 0.0, 0.0
        for step in range(_SETTLED):
            plan = planner.plan(PlannerState(step, self.measured[0], plan, train, rollout)) or plan
            assert plan is not None
            if isinstance(planner, OneAtATime | ProportionalPlanner):
                train, rollout = self.stages(plan, 0)
            elif not isinstance(planner, Searching):
                break
        assert plan is not None
        return plan


def compare(preset: str, gpus: int) -> None:
    """Print a table for each mode; both share what was simulated, so only CPU seconds of the first are whole."""
    case = Case(preset, gpus)
    modes: tuple[Mode, ...] = ("overlapped", "split")
    for mode in modes:
        case.world = replace(case.world, mode=mode)
        table = Table("planner", "plan", "predicted", "simulated", "training, rollout", "CPU s", title=mode)
        for name, make in case.planners().items():
            start = time.process_time()
            plan = case.settled(make())
            spent = time.process_time() - start
            train, rollout = case.stages(plan, 1)
            row = f"{plan.step:.1f}", f"{case.step(plan, 1):.1f}", f"{train:.1f}, {rollout:.1f}", f"{spent:.2f}"
            table.add_row(name, str(plan), *row)
        Console(width=200).print(table)


def speed() -> None:
    """CPU seconds of the search, training layouts compiled by it and without that."""
    table = Table("preset", "GPUs", "first", "again", "layouts timed", "makespans")
    for preset in ("search", "swe", "math"):
        for gpus in (48, 1024):
            setup = setup_of(preset)
            training = Training(setup, gpus)
            world = world_of(setup, training, gpus)
            spent = []
            for step in range(2):  # what was worked out for the same trajectories would be known
                measured = Measured.of(setup.tasks.step(step), setup.scenario.trajectories.group)
                search, start = Search(world), time.process_time()
                search.best(measured)
                spent.append(f"{time.process_time() - start:.2f}")
            table.add_row(preset, str(gpus), *spent, str(search.asked), str(search.evaluations))
    Console(width=120).print(table)


if __name__ == "__main__":
    if sys.argv[1:] == ["--speed"]:
        speed()
    else:
        given = [*sys.argv[1:], *("search", "48")[len(sys.argv) - 1 :]]
        compare(given[0], int(given[1]))
