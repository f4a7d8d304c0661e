"""The decision core that a scenario asks for: of the run itself, and of those that planners simulate beside it."""

from __future__ import annotations

from collections.abc import Iterable

from steelyard.balance.beginnings import ByPrompt
from steelyard.balance.core import RolloutCore
from steelyard.balance.estimate import ESTIMATORS, Oracle
from steelyard.balance.estimate.sparing import Sparing
from steelyard.balance.route.rollout import ORACLES, rollout_router
from steelyard.errors import blaming
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.records import Trajectory

_LEARNT = 8  # ours is taught by one of so many trajectories: all would take longer than simulating them


def rollout_core(setup: PosttrainSetup, truth: Oracle, known: Iterable[Trajectory] = ()) -> RolloutCore:
    """Router and estimator by name; ``truth`` is for those that are told the answer, the others have learnt
    ``known``."""
    scenario = setup.scenario
    speeds = {tp: kind.speed() for tp, kind in setup.kinds.items()}
    with blaming(scenario.source):
        router = rollout_router(scenario.router, speeds=speeds, seed=scenario.seed)
    if scenario.router in ORACLES or scenario.estimator == "oracle":
        return RolloutCore(router, truth, truth)
    estimator, beginnings = ESTIMATORS[scenario.estimator](truth), ByPrompt()
    for each in known:
        estimator.learn(each)
        beginnings.learn(each)
    told = Sparing(estimator, _LEARNT) if scenario.estimator == "suffix" else estimator
    return RolloutCore(router, told, beginnings)
