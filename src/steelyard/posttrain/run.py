"""Run a post-training scenario."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from steelyard.balance.core import RolloutCore
from steelyard.balance.estimate import ESTIMATORS, Oracle
from steelyard.balance.estimate.sparing import Sparing
from steelyard.balance.route import ORACLES, make_router
from steelyard.errors import blaming
from steelyard.posttrain.loop import Loop, Progress
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.posttrain.summary import summarise_posttrain
from steelyard.scenario.posttrain import PosttrainScenario
from steelyard.sim.run import no_collector

_LEARNT = 8  # ours is taught by one of so many trajectories: all would take longer than simulating them


@dataclass(frozen=True)
class PosttrainResult:
    """What came of it."""

    scenario: PosttrainScenario
    summary: dict[str, Any]
    loop: Loop


def posttrain(scenario: PosttrainScenario, progress: Progress | None = None) -> PosttrainResult:
    """Simulate post-training to the end of its last step."""
    setup = set_up_posttrain(scenario)
    truth = Oracle()
    loop = Loop(setup, _core(setup, truth), truth.foresee)
    with no_collector():
        loop.run(progress)
    return PosttrainResult(scenario, summarise_posttrain(setup, loop), loop)


def _core(setup: PosttrainSetup, truth: Oracle) -> RolloutCore:
    scenario = setup.scenario
    speeds = {tp: kind.speed() for tp, kind in setup.kinds.items()}
    with blaming(scenario.source):
        router = make_router(scenario.router, speeds=speeds, seed=scenario.seed)
    if scenario.router in ORACLES or scenario.estimator == "oracle":
        return RolloutCore(router, truth, truth)
    estimator = ESTIMATORS[scenario.estimator](truth)
    return RolloutCore(router, Sparing(estimator, _LEARNT) if scenario.estimator == "suffix" else estimator)
