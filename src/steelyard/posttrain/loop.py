"""The post-training loop in virtual time: rollouts begin as weights allow, groups are trained on, weights go back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from steelyard.balance.core import RolloutCore
from steelyard.balance.log import Journal
from steelyard.posttrain.draws import Foresee
from steelyard.posttrain.record import LoopRecord, StepRecord
from steelyard.posttrain.roles import Roles, first_places
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.rounds import rounds_of
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.trainer import Trainer

Progress = Callable[[int, int], None]


class Manager(Protocol):
    """Whoever changes the roles of GPUs while the loop runs."""

    def after(self, step: StepRecord) -> float:
        """A step is over, and not the last one; when the next batch may begin."""


class Loop:
    """Drives a rollout stage and a trainer through a number of steps."""

    def __init__(
        self,
        setup: PosttrainSetup,
        core: RolloutCore,
        foresee: Foresee = lambda _: None,
        journal: Journal | None = None,
    ) -> None:
        self.setup, scenario = setup, setup.scenario
        self.journal = journal
        self.record = LoopRecord()
        self.stage = RolloutStage(core, setup.kinds, scenario.engine.block_size, journal)
        self.trainer = Trainer(setup, self.stage)
        self.manager: Manager | None = None
        self._rounds = rounds_of(setup, self.stage, self.record, foresee, journal)
        shared = scenario.mode == "colocated"
        self.roles = Roles(self.stage, scenario.gpus, setup.topology.gpus_per_node, shared)
        degrees = [bucket.tp for bucket in scenario.rollout for _ in range(bucket.replicas)]
        places, job = first_places(degrees, scenario.training.gpus, scenario.gpus, shared)
        for gpus in places:
            self.roles.start_engine(gpus, 0.0)
        self.roles.train_on(job, 0.0)

    def run(self, progress: Progress | None = None) -> LoopRecord:
        """Everything up to the end of the last step."""
        now, steps = 0.0, self.setup.scenario.steps
        for version in range(steps):
            step = self.step(now, version)
            now = step.synced
            if self.manager is not None and version + 1 < steps:
                now = self.manager.after(step)
            if progress is not None:
                progress(version + 1, steps)
        return self.record

    def step(self, now: float, version: int) -> StepRecord:
        """Begin what may begin, and train on the next batch."""
        self._rounds.begin(now, version)
        step = self.trainer.train(self._rounds.gather(now, version), version)
        self.record.steps.append(step)
        return step
