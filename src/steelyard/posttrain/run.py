"""Run a post-training scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from steelyard.balance.estimate import Oracle
from steelyard.balance.log import Journal
from steelyard.posttrain.core import rollout_core
from steelyard.posttrain.foresight import Foresight, static_best
from steelyard.posttrain.hybrid import HybridPool
from steelyard.posttrain.loop import Loop, Progress
from steelyard.posttrain.planned_pool import PlannedPool
from steelyard.posttrain.replan import Replanner
from steelyard.posttrain.setup import set_up_posttrain
from steelyard.posttrain.summary import summarise_posttrain
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.sim.run import no_collector


@dataclass(frozen=True)
class PosttrainResult:
    """What came of it."""

    scenario: PosttrainScenario
    summary: dict[str, Any]
    loop: Loop


def posttrain(
    scenario: PosttrainScenario, progress: Progress | None = None, journal: Journal | None = None
) -> PosttrainResult:
    """Simulate post-training to the end of its last step; a journal is told what its core decides."""
    setup = set_up_posttrain(scenario)
    if scenario.planner == "static-best":
        setup = static_best(setup)
    truth = Oracle()
    loop = Loop(setup, rollout_core(setup, truth), truth.foresee, journal)
    _manage(loop)
    with no_collector():
        loop.run(progress)
    summary = summarise_posttrain(setup, loop) | {"gpus": scenario.gpus}  # of which a plan may leave some unused
    return PosttrainResult(scenario, summary, loop)


def _manage(loop: Loop) -> None:
    """Give a loop whoever its scenario wants to change roles."""
    scenario = loop.setup.scenario
    if scenario.planner not in ("given", "static-best"):
        planner = Replanner(loop, Foresight(loop.setup))
        loop.manager = planner if scenario.pool == "none" else PlannedPool(loop, planner)
    elif scenario.pool != "none":
        loop.manager = loop.trainer.gate = HybridPool(loop)
