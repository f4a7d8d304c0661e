"""The post-training loop in virtual time. It carries out the core's commands and reports their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from steelyard.balance.core import Core
from steelyard.balance.events import TrainerReady, WeightsPublished
from steelyard.balance.log import Journal
from steelyard.posttrain.driver import Driver
from steelyard.posttrain.reconfigure import Reconfiguration
from steelyard.posttrain.record import LoopRecord, StepRecord
from steelyard.posttrain.roles import Roles, first_places
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.starts import Starts
from steelyard.posttrain.trainer import Trainer
from steelyard.posttrain.waking import Waking
from steelyard.scenario.tails import ReconfigureSpec

Progress = Callable[[int, int], None]


class Manager(Protocol):
    """Reports each step to the part of the core that changes the roles of GPUs, and carries out its commands."""

    def after(self, step: StepRecord) -> float:
        """A step other than the last is over. Returns when the next batch may begin."""


class Loop:
    """Drives a rollout stage and a trainer through a number of steps."""

    def __init__(
        self,
        setup: PosttrainSetup,
        core: Core,
        journal: Journal | None = None,
        *,
        tells_truth: bool = False,
        record: LoopRecord | None = None,
    ) -> None:
        self.setup, scenario = setup, setup.scenario
        self.driver = Driver(core, journal)
        block_size = next(iter(setup.kinds.values())).limits.block_size
        self.record = LoopRecord() if record is None else record
        self.stage = RolloutStage(self.driver, setup.kinds, block_size, self.record, tells_truth=tells_truth)
        self.trainer = Trainer(setup, self.stage, self.record)
        self.starts = Starts(setup, self.stage)
        self.manager: Manager | None = None
        shared = scenario.mode == "colocated"
        self.roles = Roles(self.stage, scenario.gpus, setup.topology.gpus_per_node, shared)
        degrees = [bucket.tp for bucket in scenario.rollout for _ in range(bucket.replicas)]
        places, job = first_places(degrees, scenario.training.gpus, scenario.gpus, shared)
        for gpus in places:
            self.roles.start_engine(gpus, 0.0)
        self.roles.train_on(job, 0.0)
        self.waking = Waking(setup, self.stage, self.roles) if scenario.training.generates else None
        self.trainer.sleepers = self.waking
        if isinstance(scenario.tail, ReconfigureSpec):
            Reconfiguration(setup, scenario.tail, self.stage, self.roles, self.record)

    def run(self, progress: Progress | None = None) -> LoopRecord:
        """Run to the end of the last step."""
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
        """Start the trajectories that may start, and train on the next batch."""
        steps = self.record.steps
        if self.waking is not None and self.trainer.ready <= now:
            self.waking.waits(now, self.trainer.job)
        self.driver.tell(WeightsPublished(now, version))
        self.driver.tell(TrainerReady(now, version))
        if len(steps) == version:
            self.stage.run()  # the trainer stops it at the end of the step
        assert len(steps) > version, f"step {version}: nothing is left to wait for"
        return steps[version]
