"""The training job in virtual time: a batch goes in, and rollouts go on meanwhile until they get its weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steelyard.posttrain.record import StepRecord
from steelyard.posttrain.rollout import Attempt, RolloutStage
from steelyard.posttrain.setup import PosttrainSetup


class Trainer:
    """Trains on one batch after the other, and hands out the weights."""

    def __init__(self, setup: PosttrainSetup, stage: RolloutStage) -> None:
        self._setup = setup
        self._stage = stage
        self._idle_since = 0.0

    def train(self, batch: Sequence[Attempt], now: float, version: int) -> StepRecord:
        """One step with weights of a version; engines have the next one when it is over."""
        setup, stage = self._setup, self._stage
        begun = now + setup.before_training
        time = setup.training.step(np.array([attempt.context for attempt in batch]))
        trained = begun + time.seconds
        stage.run(until=trained)
        synced = trained + setup.sync
        stage.new_weights(trained, synced)
        stage.run(until=synced)
        waited_from, self._idle_since = self._idle_since, synced
        return StepRecord(
            step=version,
            waited_from=waited_from,
            begun=begun,
            trained=trained,
            synced=synced,
            time=time,
            samples=len(batch),
            tokens=sum(attempt.trajectory.generated for attempt in batch),
            staleness=tuple(version - attempt.version for attempt in batch),
        )
