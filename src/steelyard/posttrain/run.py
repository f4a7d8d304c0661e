"""Run a post-training scenario."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from steelyard.balance.core import RolloutCore
from steelyard.balance.estimate import Blind, ByTurn, Estimator, Noisy, Oracle, PaperTrie, SuffixBackoff
from steelyard.balance.estimate.sparing import Sparing
from steelyard.balance.route import ORACLES, make_router
from steelyard.errors import blaming
from steelyard.posttrain.loop import Loop, Progress
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.posttrain.summary import summarise_posttrain
from steelyard.scenario.posttrain import PosttrainScenario

_LEARNT = 8  # one of so many trajectories is learnt from: teaching all takes longer than simulating them
_NOISE = 0.5


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
    enabled = gc.isenabled()
    gc.disable()  # millions of objects and no cycles
    try:
        loop.run(progress)
    finally:
        if enabled:
            gc.enable()
    return PosttrainResult(scenario, summarise_posttrain(setup, loop), loop)


def _core(setup: PosttrainSetup, truth: Oracle) -> RolloutCore:
    scenario = setup.scenario
    speeds = {tp: kind.speed() for tp, kind in setup.kinds.items()}
    with blaming(scenario.source):
        router = make_router(scenario.router, speeds=speeds, seed=scenario.seed)
    told = scenario.router in ORACLES or scenario.estimator == "oracle"
    return RolloutCore(router, truth if told else _ESTIMATORS[scenario.estimator](truth), truth if told else None)


_ESTIMATORS: dict[str, Callable[[Oracle], Estimator]] = {
    "suffix": lambda _: Sparing(SuffixBackoff(), _LEARNT),
    "trie": lambda _: PaperTrie(),
    "turn": lambda _: ByTurn(),
    "blind": lambda _: Blind(),
    "noisy": lambda truth: Noisy(truth, _NOISE),
    "oracle": lambda truth: truth,
}
