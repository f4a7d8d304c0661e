"""Run a post-training scenario."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass
from itertools import count
from typing import Any

from steelyard.balance.log import Journal
from steelyard.collector import collector_off
from steelyard.errors import blaming
from steelyard.posttrain.choosing import Chosen, choose, try_ways
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.hybrid import PoolDriver
from steelyard.posttrain.loop import Loop, Progress
from steelyard.posttrain.plan_simulator import PlanSimulator, best_in_hindsight
from steelyard.posttrain.planning import planner_settings
from steelyard.posttrain.record import LoopRecord
from steelyard.posttrain.replan import Replanner
from steelyard.posttrain.result import PosttrainResult
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.posttrain.summary import summarise_posttrain
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.sim.size import check_end


@dataclass(frozen=True)
class Driven:
    """A run and its loop."""

    result: PosttrainResult
    loop: Loop

    @property
    def summary(self) -> dict[str, Any]:
        """The headline figures."""
        return self.result.summary


def posttrain(
    scenario: PosttrainScenario, progress: Progress | None = None, journal: Journal | None = None
) -> PosttrainResult:
    """Simulate post-training to the end of its last step. A journal records the decisions of its core.

    If the best fixed plan in hindsight is wanted and two are close, both are run to the end.
    """
    return drive(scenario, progress, journal).result


def drive(scenario: PosttrainScenario, progress: Progress | None = None, journal: Journal | None = None) -> Driven:
    """The same, with the loop itself. If the scenario has an objective, the way to run it is chosen first."""
    if scenario.objective is not None:
        chosen = choose_way(scenario, _while_planning(progress, [], scenario.steps))
        driven = drive(chosen.scenario, progress, journal)
        driven.summary["chosen"] = chosen.as_dict()
        return driven
    setup = set_up_posttrain(scenario)
    with blaming(scenario.source):  # for a trajectory that turns out too long for the engines
        return _drive(scenario, setup, progress, journal)


def _drive(
    scenario: PosttrainScenario, setup: PosttrainSetup, progress: Progress | None, journal: Journal | None
) -> Driven:
    if scenario.planner != "static-best":
        return _run(scenario, setup, progress, journal)
    close = best_in_hindsight(setup, _while_planning(progress, [], scenario.steps))
    if len(close) > 1:
        best = max((_run(scenario, each, progress) for each in close), key=lambda each: each.loop.record.settled)
        if journal is None:
            return best
        close = [best.loop.setup]
    return _run(scenario, close[0], progress, journal)


def _run(
    scenario: PosttrainScenario, setup: PosttrainSetup, progress: Progress | None, journal: Journal | None = None
) -> Driven:
    """Run a set-up, whose plan may differ from the scenario's."""
    record = LoopRecord()
    plans_anew = scenario.planner not in ("given", "static-best")
    simulator = PlanSimulator(setup, _while_planning(progress, record.steps, scenario.steps)) if plans_anew else None
    planner = (
        None
        if simulator is None
        else planner_settings(scenario, simulator.world, simulator.training, simulator.written)
    )
    settings = core_settings(setup, planner)
    if journal is not None:
        journal.begin(settings)
    loop = Loop(setup, settings.core(), journal, tells_truth=settings.tells_truth, record=record)
    if simulator is not None:
        loop.manager = Replanner(loop, simulator)
    elif scenario.pool != "none":
        loop.manager = loop.trainer.gate = PoolDriver(loop)
    with collector_off():
        loop.run(progress)
    check_end(record.steps[-1].synced, "trajectories")
    summary = summarise_posttrain(setup, loop, scenario.gpus)
    return Driven(PosttrainResult.of(scenario, summary, loop), loop)


def choose_way(scenario: PosttrainScenario, watch: Callable[[int], object] = lambda made: None) -> Chosen:
    """Choose a way to run the scenario by its objective. ``watch`` is called with the number of runs so far."""
    assert scenario.objective is not None, "there is something to choose for"
    made = count()

    def simulate(tried: PosttrainScenario) -> dict[str, Any]:
        watch(next(made))
        return drive(tried).summary

    return choose(scenario, scenario.objective, try_ways(scenario, simulate))


def _while_planning(progress: Progress | None, done: Sized, steps: int) -> Callable[[int], None]:
    """Report progress during planning, which may take longer than steps."""
    return lambda _: None if progress is None else progress(len(done), steps)
