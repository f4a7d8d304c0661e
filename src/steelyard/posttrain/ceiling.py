"""The most tokens a second that any way to run a scenario can reach: all its GPUs, never idle, at the least work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steelyard.posttrain.colocated import layouts_over_all
from steelyard.posttrain.least_work import LeastWork
from steelyard.posttrain.planning import Training
from steelyard.posttrain.setup import set_up_posttrain, train_settings
from steelyard.posttrain.training import TrainLayout
from steelyard.scenario.posttrain import PosttrainScenario


def ceiling(scenario: PosttrainScenario) -> float:
    """Tokens of trained samples per second of a whole run, of ways that train on all samples of the first prompts.

    Engines may have any degree, and training any layout that planners or co-located ways may choose.
    """
    free = scenario.replace(training=scenario.training.replace(weighed=True))
    setup, gpus = set_up_posttrain(free, any_degree=True), free.gpus
    layouts = {*Training(setup, gpus).layouts.values(), *layouts_over_all(setup, gpus)}
    settings = train_settings(free)
    alike: dict[TrainLayout, list[TrainLayout]] = {}
    for each in layouts:
        alike.setdefault(replace(each, dp=1), []).append(each)
    # How many ranks there are hardly matters to the work: of each layout the fewest and the most are looked at.
    ends = {end for some in alike.values() for end in (min(some, key=_ranks), max(some, key=_ranks))}
    chosen = sorted(ends, key=repr)
    work = LeastWork(setup.kinds, [setup.compile(each, settings) for each in chosen])
    seconds = tokens = 0.0
    for step in range(scenario.steps):
        batch = list(setup.tasks.step(step))
        lengths = np.array([each.tokens for each in batch])
        seconds += (work.rollout(batch) + work.training(lengths)) / gpus
        tokens += sum(each.generated for each in batch)
    return tokens / seconds


def _ranks(layout: TrainLayout) -> int:
    return layout.dp
