"""`python -m bench.routers [SCENARIO [SEED...]]`: how long rollouts take with each router, beside those that know.

The scenario's engines roll out the trajectories of a few training steps, each step after the last trajectory of the
one before, without training in between. Estimators are taught by what they see, as in `steelyard posttrain`.
``--quarter`` takes a quarter of the replicas and prompts, ``--rollout 1:6,2:5`` other engines (degree:replicas),
``--only heddle,cost-aware`` these routers.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from steelyard.collector import collector_off
from steelyard.posttrain.core import core_settings
from steelyard.posttrain.driver import Driver
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.setup import PosttrainSetup, set_up_posttrain
from steelyard.scenario.posttrain import BucketSpec, PosttrainScenario
from steelyard.scenario.posttrain_loading import load_posttrain

KNOWING = (("cost-aware", "oracle"), ("heddle", "oracle"), ("c-mlfq", "oracle"), ("shortest-first", "oracle"))
LEARNING = (("cost-aware", "suffix"), ("heddle", "suffix"), ("c-mlfq", "trie"), ("length-predicted", "suffix"))
PLAIN = ("prefix-aware", "least-outstanding", "power-of-two", "sticky", "least-attained", "round-robin")
STEPS = 3


@dataclass(frozen=True)
class Rolled:
    """A step's rollout: seconds until the last trajectory had ended, until nine tenths of the tokens were of such
    that had, and until trajectories had in the mean; and CPU seconds to simulate it."""

    last: float
    most: float
    mean: float
    spent: float


def roll_out(setup: PosttrainSetup) -> list[Rolled]:
    """Each of a few steps."""
    settings = replace(core_settings(setup), tail=None, pool=None)
    block_size = setup.scenario.engine.block_size
    stage = RolloutStage(Driver(settings.core()), setup.kinds, block_size, tells_truth=settings.tells_truth)
    degrees = chain.from_iterable([bucket.tp] * bucket.replicas for bucket in setup.scenario.rollout)
    for number, tp in enumerate(degrees):
        stage.add(number, tp, 0.0)
    begun, rolled = 0.0, []
    for step in range(STEPS):
        start = time.process_time()
        batch = setup.tasks.step(step)
        stage.begin([(each, "") for each in batch], begun, step)  # of no group: no round regulates them
        stage.run()
        done = list(stage.ended.values())[step * len(batch) :]
        ends = np.array([attempt.ended - begun for attempt in done])
        tokens = np.cumsum([attempt.trajectory.generated for attempt in done])
        most = ends[np.searchsorted(tokens, 0.9 * tokens[-1])]
        rolled.append(Rolled(ends.max(), most, ends.mean(), time.process_time() - start))
        begun += ends.max()
        stage.new_weights(begun, begun)
    return rolled


def quarter(scenario: PosttrainScenario) -> PosttrainScenario:
    """A quarter of the prompts and replicas. Its training job is not run, and need not fit."""
    fewer = scenario.trajectories.model_copy(update={"prompts": scenario.trajectories.prompts // 4})
    buckets = tuple(each.model_copy(update={"replicas": -(-each.replicas // 4)}) for each in scenario.rollout)
    return scenario.model_copy(update={"trajectories": fewer, "rollout": buckets})


def compare(scenario: PosttrainScenario, seeds: list[int], only: Collection[str]) -> None:
    """Print a table: the first step, in which nothing is known, and those after it in the mean."""
    table = Table("router", "estimator", "step 0", "later steps", "of the oracle's", "90 % of tokens", "mean", "CPU s")
    best = 0.0
    for router, estimator in (*KNOWING, *LEARNING, *((name, "blind") for name in PLAIN)):
        if only and router not in only:
            continue
        first, later = [], []
        for seed in seeds:
            asked = scenario.model_copy(update={"router": router, "estimator": estimator, "seed": seed})
            with collector_off():
                rolled = roll_out(set_up_posttrain(asked))
            first.append(rolled[0])
            later.extend(rolled[1:])
        last = float(np.mean([each.last for each in later]))
        best = best or last
        figures = [float(np.mean([each.last for each in first])), last]
        more = [float(np.mean([each.most for each in later])), float(np.mean([each.mean for each in later]))]
        spent = float(np.mean([each.spent for each in first + later]))
        row = *(f"{each:.1f}" for each in figures), f"{100 * best / last:.0f} %", *(f"{each:.1f}" for each in more)
        table.add_row(router, estimator, *row, f"{spent:.1f}")
    Console(width=120).print(table)


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.routers")
    parser.add_argument("scenario", nargs="?", type=Path, default=Path("examples/posttrain/search-48.yaml"))
    parser.add_argument("seeds", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--quarter", action="store_true")
    parser.add_argument("--rollout")
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    scenario = load_posttrain(given.scenario)
    if given.rollout:
        pairs = (map(int, each.split(":")) for each in given.rollout.split(","))
        buckets = tuple(BucketSpec(tp=tp, replicas=replicas) for tp, replicas in pairs)
        scenario = scenario.model_copy(update={"rollout": buckets})
    if given.quarter:
        scenario = quarter(scenario)
    compare(scenario, given.seeds, [name for name in given.only.split(",") if name])


if __name__ == "__main__":
    main()
