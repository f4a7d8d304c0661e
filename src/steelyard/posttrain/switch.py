"""Carries out a change of plan: engines stop and start, and the training job changes its layout."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from steelyard.balance.plan import Plan
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.planning import Training
from steelyard.posttrain.roles import Gpus
from steelyard.posttrain.switch_plan import RolesNow, SwitchPlan, started_ahead, switch_plan


class Switch:
    """Changes the roles of a loop's GPUs from one plan to another.

    - Engines that are in the new plan stay. The others send their trajectories elsewhere and stop, at once unless the
      scenario's way to switch lets them serve for longer.
    - A training job with another layout creates its groups again, and its GPUs fetch their shards of weights and
      optimiser states. GPUs that leave it are free when that is done.
    - New engines start where GPUs are free, or wake if one of their kind sleeps there or was started ahead. Then they
      fetch the current weights.
    """

    def __init__(self, loop: Loop, training: Training) -> None:
        self._loop, self._training = loop, training
        self._ahead: set[Gpus] = set()  # GPUs of engines that were started for the next change

    def prepare(self, plan: Plan, now: Plan) -> float:
        """Start what can be started ahead of a change, while everything runs on. Returns the seconds it takes."""
        if self._loop.setup.scenario.switch != "pre-warm":
            return 0.0
        self._ahead, seconds = started_ahead(self._loop.setup, self._training, now, plan, self._roles())
        return seconds

    def seconds(self, plan: Plan, now: Plan) -> float:
        """Seconds of a change, until all GPUs are in use again."""
        return self._planned(plan, now).seconds

    def carry_out(self, plan: Plan, now: Plan, at: float) -> tuple[float, float]:
        """Start a change at the current second. Returns when the next batch may begin, and when all GPUs are in use."""
        stage, roles, trainer = self._loop.stage, self._loop.roles, self._loop.trainer
        change = self._planned(plan, now)
        ups = {gpus: at + seconds for gpus, seconds in change.new.items()}
        for number in [each for each in roles.engines if each not in change.stay]:
            if number in change.stops:
                stage.later(at + change.stops[number], partial(roles.stop_engine, number))
            else:
                roles.stop_engine(number, at)
        if change.laid:
            roles.stop_training(at)
            stage.later(at + change.laid, partial(roles.train_on, change.job))
        trainer.job, trainer.ready = self._training.job(plan.training, plan.buckets), at + change.laid
        for gpus, up in ups.items():
            stage.later(up, partial(roles.start_engine, gpus))
        self._ahead.clear()
        ready = at + change.ready
        stage.run(until=ready)
        return ready, max([at + change.laid, *ups.values()])

    def _planned(self, plan: Plan, now: Plan) -> SwitchPlan:
        roles = self._roles()
        if self._ahead:
            roles = replace(roles, known=roles.known | self._ahead)
        return switch_plan(self._loop.setup, self._training, now, plan, roles)

    def _roles(self) -> RolesNow:
        roles = self._loop.roles
        assert roles.training is not None, "the loop has begun"
        engines = {number: tenure.gpus for number, tenure in roles.engines.items()}
        return RolesNow(roles.gpus, roles.node, engines, roles.training.gpus, roles.known, roles.shared)
