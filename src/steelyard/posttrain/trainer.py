"""The training job in virtual time: it trains on the parts of a step, updates, and sends weights to engines."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from steelyard.balance.commands import TrainOn
from steelyard.balance.events import PartTrained, StepTrained
from steelyard.posttrain.attempt import Attempt
from steelyard.posttrain.record import LoopRecord, StepRecord
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.training import TrainingTime


class Gate(Protocol):
    """Called at the barriers before and after a step. It may change the job from there on."""

    def begins(self, at: float, step: int) -> None:
        """All training replicas are ready; samples are not assigned yet."""

    def ends(self, at: float, step: int) -> None:
        """Gradients were reduced."""


class Sleepers(Protocol):
    """Engines on the GPUs of training, which run while it waits."""

    def over(self, at: float) -> float:
        """Samples are there. Returns the seconds until training may begin."""


@dataclass
class _Step:
    """The current step."""

    step: int
    before: float = 0.0  # seconds that engines took to free its GPUs
    batch: list[Attempt] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)  # when each part was trained on
    times: list[TrainingTime] = field(default_factory=list)


class Trainer:
    """Trains on one batch after the other, and sends the weights to engines.

    A part is trained on as soon as it is complete and the one before has ended; all parts make one update. ``job`` may
    change from step to step; it takes no samples before ``ready``.
    """

    def __init__(self, setup: PosttrainSetup, stage: RolloutStage, record: LoopRecord) -> None:
        self.job = setup.job
        self.ready = 0.0
        self.gate: Gate | None = None
        self.sleepers: Sleepers | None = None
        self._stage = stage
        self._record = record
        self._tell = stage.driver.tell
        self._idle_since = 0.0
        self._step = _Step(-1)
        stage.driver.on(TrainOn, self.train_on)

    def train_on(self, command: TrainOn, at: float) -> None:
        """Train on samples of a step."""
        samples = [self._stage.ended.pop(name) for name in command.trajectories]
        if command.step != self._step.step:
            freed = self.job.before + (0.0 if self.sleepers is None else self.sleepers.over(at))
            self._step = _Step(command.step, freed)
            begun = max(at, self.ready) + freed
            self._stage.later(begun, lambda now: self._begin(samples, command, now), last=True)
            return
        self._train(samples, command, max(at, self._step.spans[-1][1]))

    def _begin(self, samples: list[Attempt], command: TrainOn, at: float) -> None:
        if self.gate is not None:
            self.gate.begins(at, command.step)
        self._train(samples, command, at)

    def _train(self, samples: list[Attempt], command: TrainOn, begun: float) -> None:
        step, cost = self._step, self.job.cost
        lengths = np.array([attempt.context for attempt in samples])
        whole = command.last and not step.spans
        time = cost.step(lengths) if whole else cost.part(lengths, last=command.last)
        step.batch += samples
        step.spans.append((begun, begun + time.seconds))
        step.times.append(time)
        through = self._end if command.last else lambda at: self._tell(PartTrained(at, command.step, command.part))
        self._stage.later(begun + time.seconds, through, last=True)

    def _end(self, at: float) -> None:
        """The update is done. Engines have its weights after the sync."""
        job, stage, version = self.job, self._stage, self._step.step
        self._record.train(version, self._step.batch)
        synced = at + job.sync
        if self.gate is not None:
            self.gate.ends(at, version)
        stage.new_weights(at, synced)
        self._tell(StepTrained(at, version))
        stage.later(synced, lambda now: self._note(now, job.sync, job.cost.layout.gpus), last=True)

    def _note(self, synced: float, sync: float, training_gpus: int) -> None:
        step = self._step
        waited_from, self._idle_since = self._idle_since, synced
        self._record.steps.append(
            StepRecord(
                step=step.step,
                waited_from=waited_from,
                begun=step.spans[0][0],
                trained=step.spans[-1][1],
                synced=synced,
                time=TrainingTime.together(step.times),
                samples=len(step.batch),
                tokens=sum(attempt.trajectory.generated for attempt in step.batch),
                staleness=array("i", [step.step - attempt.version for attempt in step.batch]),
                spans=tuple(step.spans),
                handing_over=step.before,
                sync=sync,
                training_gpus=training_gpus,
                rollout_gpus=sum(self._stage.tp.values()),
            )
        )
        self._stage.stop()
