"""Co-located runs: rollout and training share all GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import product

import numpy as np

from steelyard.errors import UserError
from steelyard.posttrain.planning import longest_sequence
from steelyard.posttrain.setup import DEGREES, PosttrainSetup, set_up_posttrain, train_settings
from steelyard.posttrain.training import TrainLayout
from steelyard.scenario.posttrain import BucketSpec, PosttrainScenario, TrainingSpec

# A finer grid than the planner's (`planning.py`): a co-located job must use all GPUs, whose number may have factors 3
# and 5, and it is searched once per scenario. The planner leaves GPUs to rollout, and times its grid for every split.
_STAGES = (1, 2, 3, 4, 5, 8)
_SPLITS = (1, 2, 3, 5, 6)  # context-parallel ranks
_MICRO_BATCHES = (8192, 16384, 24576, 40960)


def colocated(scenario: PosttrainScenario) -> PosttrainScenario:
    """The scenario with rollout and training on the same GPUs: the fastest training layout over all of them, and
    engines of the largest given degree that divides them. A planner may choose another degree."""
    setup, gpus, settings = set_up_posttrain(scenario), scenario.gpus, train_settings(scenario)
    lengths = np.array([each.tokens for each in setup.tasks.step(0)])
    fitting = layouts_over_all(setup, gpus)
    layout = min(fitting, key=lambda each: setup.jobs.seconds(each, settings, lengths), default=None)
    if layout is None:
        raise UserError(f"{scenario.source}: no training layout over all {gpus} GPUs fits memory and divides the batch")
    spec = {name: value for name, value in asdict(layout).items() if name in TrainingSpec.model_fields}
    degree = max(bucket.tp for bucket in scenario.rollout if gpus % bucket.tp == 0)
    engines = (BucketSpec(tp=degree, replicas=gpus // degree),)
    return scenario.replace(training=scenario.training.replace(**spec), rollout=engines)


def layouts_over_all(setup: PosttrainSetup, gpus: int) -> Iterator[TrainLayout]:
    """Training layouts over all GPUs that fit memory and divide the batch."""
    settings, longest = train_settings(setup.scenario), longest_sequence(setup)
    for tp, pp, cp in product(DEGREES, _STAGES, _SPLITS):
        dp, rest = divmod(gpus, tp * pp * cp)
        if rest or not dp:
            continue
        tokens = [each for each in _MICRO_BATCHES if each * cp >= longest]
        for zero, ep, budget in product((1, 3), sorted({1, setup.scenario.training.ep}), tokens):
            layout = TrainLayout(tp, pp, dp, ep, cp, zero, "full", budget)
            if setup.jobs.fits(layout, settings):
                yield layout
