"""Carries out a change of plan: engines stop and start, and the training job changes its layout."""

from __future__ import annotations

from functools import partial

from steelyard.balance.plan import Plan
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.planning import Training
from steelyard.posttrain.switch_plan import RolesNow, SwitchPlan, switch_plan


class Switch:
    """Changes the roles of a loop's GPUs from one plan to another.

    - Engines that are in the new plan stay. The others send their trajectories elsewhere and stop at once.
    - A training job with another layout creates its groups again, and its GPUs fetch their shards of weights and
      optimiser states. GPUs that leave it are free when that is done.
    - New engines start where GPUs are free, or wake if one of their kind sleeps there. Then they fetch the current
      weights.
    """

    def __init__(self, loop: Loop, training: Training) -> None:
        self._loop, self._training = loop, training

    def seconds(self, plan: Plan, now: Plan) -> float:
        """Seconds of a change, until all GPUs are in use again."""
        return self._planned(plan, now).seconds

    def carry_out(self, plan: Plan, now: Plan, at: float) -> tuple[float, float]:
        """Start a change at the current second. Returns when all engines run again, and when all GPUs are in use."""
        stage, roles, trainer = self._loop.stage, self._loop.roles, self._loop.trainer
        change = self._planned(plan, now)
        ups = {gpus: at + seconds for gpus, seconds in change.new.items()}
        for number in [each for each in roles.engines if each not in change.stay]:
            roles.stop_engine(number, at)
        if change.laid:
            roles.stop_training(at)
            stage.later(at + change.laid, partial(roles.train_on, change.job))
        trainer.job, trainer.ready = self._training.job(plan.training, plan.buckets), at + change.laid
        for gpus, up in ups.items():
            stage.later(up, partial(roles.start_engine, gpus))
        ready = max([at, *ups.values()])
        stage.run(until=ready)
        return ready, max(ready, at + change.laid)

    def _planned(self, plan: Plan, now: Plan) -> SwitchPlan:
        roles = self._loop.roles
        assert roles.training is not None, "the loop has begun"
        engines = {number: tenure.gpus for number, tenure in roles.engines.items()}
        present = RolesNow(roles.gpus, roles.node, engines, roles.training.gpus, roles.known, roles.shared)
        return switch_plan(self._loop.setup, self._training, now, plan, present)
