"""The training job in virtual time: a batch goes in, and rollouts go on meanwhile until they get its weights."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from steelyard.posttrain.attempt import Attempt, Part, Parts
from steelyard.posttrain.record import StepRecord
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.training import TrainingTime


class Gate(Protocol):
    """Whoever is told of the barriers that a step begins and ends with; what it does to the job holds from there on."""

    def begins(self, at: float, version: int) -> None:
        """All that train stand ready; samples have not been dealt out yet."""

    def ends(self, at: float, version: int) -> None:
        """Gradients have been added up."""


class Trainer:
    """Trains on one batch after the other, and hands out the weights.

    ``job`` may be another one from step to step; it takes nothing before ``ready``.
    """

    def __init__(self, setup: PosttrainSetup, stage: RolloutStage) -> None:
        self.job = setup.job
        self.ready = 0.0
        self.gate: Gate | None = None
        self._stage = stage
        self._idle_since = 0.0

    def train(self, parts: Parts, version: int) -> StepRecord:
        """One step with weights of a version; engines have the next one when it is over.

        A part is trained on as soon as it is there and the one before is through; all make one update in the end.
        """
        stage = self._stage
        batch, spans, times = self._pass_over(parts, version)
        job, trained = self.job, spans[-1][1]
        stage.run(until=trained)
        if self.gate is not None:
            self.gate.ends(trained, version)
        synced = trained + job.sync
        stage.new_weights(trained, synced)
        stage.run(until=synced)
        waited_from, self._idle_since = self._idle_since, synced
        return StepRecord(
            step=version,
            waited_from=waited_from,
            begun=spans[0][0],
            trained=trained,
            synced=synced,
            time=TrainingTime.together(times),
            samples=len(batch),
            tokens=sum(attempt.trajectory.generated for attempt in batch),
            staleness=tuple(version - attempt.version for attempt in batch),
            spans=tuple(spans),
            handing_over=job.before,
            sync=job.sync,
            training_gpus=job.cost.layout.gpus,
            rollout_gpus=sum(stage.tp.values()),
        )

    def _pass_over(
        self, parts: Parts, version: int
    ) -> tuple[list[Attempt], list[tuple[float, float]], list[TrainingTime]]:
        """All samples, and when each part was trained on, how long."""
        batch, spans, times = list[Attempt](), list[tuple[float, float]](), list[TrainingTime]()
        part = next(parts)
        begun = max(part.at, self.ready) + self.job.before
        if self.gate is not None:
            self._stage.run(until=begun)
            self.gate.begins(begun, version)
        while True:
            time = self._time(part, whole=part.last and not spans)
            free = begun + time.seconds
            batch += part.samples
            spans.append((begun, free))
            times.append(time)
            if part.last:
                return batch, spans, times
            part = parts.send(free)
            begun = max(part.at, free)

    def _time(self, part: Part, whole: bool) -> TrainingTime:
        lengths = np.array([attempt.context for attempt in part.samples])
        return self.job.cost.step(lengths) if whole else self.job.cost.part(lengths, last=part.last)
