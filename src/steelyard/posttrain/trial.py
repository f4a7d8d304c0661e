"""The trial of a plan: the loop, run on known trajectories."""

from __future__ import annotations

from dataclasses import replace

from steelyard.posttrain.core import core_settings
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.recent import Batch
from steelyard.posttrain.setup import PosttrainSetup


def loop_of(setup: PosttrainSetup, known: Batch) -> Loop:
    """A loop whose estimator has learnt from ``known``."""
    settings = core_settings(setup)
    return Loop(setup, settings.core(known), tells_truth=settings.tells_truth)


class Trial:
    """A run that is measured from its middle on, when all batches that began together have ended. It can be continued
    up to ``most`` steps for more precision."""

    def __init__(self, setup: PosttrainSetup, known: Batch, most: int) -> None:
        self._first = setup.scenario.staleness_bound + 1
        going_on = setup.scenario.replace(steps=2 * self._first + most)
        self._loop = loop_of(replace(setup, scenario=going_on), known)
        self._now, self._steps = 0.0, 0
        self._run(self._first)
        self._begun, self._tokens = self._now, _tokens(self._loop)

    def seconds(self, steps: int) -> float:
        """The mean step over this many steps, or over more if it was continued for longer.

        Engines that are too slow fall behind for many steps before training waits for them, since they have a head
        start. So step times are scaled by the ratio of tokens started to tokens generated meanwhile, except where
        samples are started that are not trained on.
        """
        self._run(self._first + steps)
        trained = (self._now - self._begun) / (self._steps - self._first)
        scenario = self._loop.setup.scenario
        if scenario.tail.kind != "none" or scenario.admission.late == "drop":
            return trained
        (made, left), (made_then, left_then) = self._tokens, _tokens(self._loop)
        return trained * (1.0 + (left_then - left) / (made_then - made))

    def _run(self, upto: int) -> None:
        while self._steps < upto:
            self._now = self._loop.step(self._now, self._steps).synced
            self._steps += 1


def _tokens(loop: Loop) -> tuple[int, int]:
    """Tokens of all trajectories begun so far, and tokens that running ones have left."""
    under_way = loop.stage.running.values()
    made = sum(attempt.generated for attempt in under_way)
    return loop.record.tokens.ended + made, sum(attempt.trajectory.generated for attempt in under_way) - made
