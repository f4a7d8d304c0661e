"""Carries out a change of plan: engines stop and start, and the training job changes its layout."""

from __future__ import annotations

from functools import partial

from steelyard.balance.plan import Plan
from steelyard.model import Layout
from steelyard.posttrain.changes import engines_begin, relayout
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.planning import Training
from steelyard.posttrain.roles import Gpus, new_places


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
        had = self._had
        _, places, job = self._placed(plan, had)
        laid = self._laying_out(plan, now, job)
        return max([laid, *(self._up(gpus, laid) for gpus in places)])

    def carry_out(self, plan: Plan, now: Plan, at: float) -> tuple[float, float]:
        """Start a change at the current second. Returns when all engines run again, and when all GPUs are in use."""
        stage, roles, trainer = self._loop.stage, self._loop.roles, self._loop.trainer
        stay, places, job = self._placed(plan, self._had)
        laid = self._laying_out(plan, now, job)
        ups = {gpus: at + self._up(gpus, laid) for gpus in places}
        for number in [each for each in roles.engines if each not in stay]:
            roles.stop_engine(number, at)
        if laid:
            roles.stop_training(at)
            stage.later(at + laid, partial(roles.train_on, job))
        trainer.job, trainer.ready = self._training.job(plan.training, plan.buckets), at + laid
        for gpus, up in ups.items():
            stage.later(up, partial(roles.start_engine, gpus))
        ready = max([at, *ups.values()])
        stage.run(until=ready)
        return ready, max(ready, at + laid)

    @property
    def _had(self) -> Gpus:
        training = self._loop.roles.training
        assert training is not None, "the loop has begun"
        return training.gpus

    def _laying_out(self, plan: Plan, now: Plan, job: Gpus) -> float:
        """Seconds until the training job continues; 0 if it does not change."""
        if plan.training == now.training and set(job) == set(self._had):
            return 0.0
        layouts, setup = self._training.layouts, self._loop.setup
        return relayout(setup.model, setup.topology, layouts[now.training], layouts[plan.training]).seconds

    def _up(self, gpus: Gpus, laid: float) -> float:
        """Seconds until an engine is up. On GPUs of the training job it waits until the job has its new layout."""
        setup, roles, trainers = self._loop.setup, self._loop.roles, len(self._had)
        waits = laid if set(gpus) & set(self._had) and not roles.shared else 0.0
        kind, asleep = Layout(tp=len(gpus)), gpus in roles.known
        return waits + engines_begin(setup.model, setup.topology, trainers, len(gpus), kind, asleep=asleep).seconds

    def _placed(self, plan: Plan, had: Gpus) -> tuple[set[int], list[Gpus], Gpus]:
        """Engines that stay, GPUs of new engines, and GPUs of the training job. If new engines do not fit into nodes
        beside those that would stay, none stays."""
        roles = self._loop.roles
        wanted, stay = dict(plan.replicas), set[int]()
        for number, tenure in roles.engines.items():
            if wanted.get(len(tenure.gpus), 0):
                wanted[len(tenure.gpus)] -= 1
                stay.add(number)
        for kept in (stay, set[int]()):
            taken = {gpu for number in kept for gpu in roles.engines[number].gpus}
            counts = dict(plan.replicas)
            for number in kept:
                counts[len(roles.engines[number].gpus)] -= 1
            degrees = [tp for tp, replicas in counts.items() for _ in range(replicas)]
            free = [gpu for gpu in range(roles.gpus) if gpu not in taken]
            training = 0 if roles.shared else plan.training.gpus
            found = new_places(degrees, training, () if roles.shared else had, free, roles.node)
            if found is not None:
                places, job = found
                return kept, places, had if roles.shared else job
        raise AssertionError("engines of whole nodes and less always fit")
