"""The post-training loop in virtual time: rollouts begin as weights allow, groups are trained on, weights go back."""

from __future__ import annotations

from collections.abc import Callable

from steelyard.balance.core import RolloutCore
from steelyard.posttrain.record import LoopRecord
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.rounds import Foresee, Rounds
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.trainer import Trainer

Progress = Callable[[int, int], None]


class Loop:
    """Drives a rollout stage and a trainer through a number of steps."""

    def __init__(self, setup: PosttrainSetup, core: RolloutCore, foresee: Foresee = lambda _: None) -> None:
        self.setup, scenario = setup, setup.scenario
        self.record = LoopRecord()
        self.stage = RolloutStage(core, setup.kinds, scenario.engine.block_size)
        self._steps = scenario.steps
        self._rounds = Rounds(setup, self.stage, self.record, foresee)
        self._trainer = Trainer(setup, self.stage)
        degrees = [bucket.tp for bucket in scenario.rollout for _ in range(bucket.replicas)]
        for number, tp in enumerate(degrees):
            self.stage.add(number, tp, 0.0)

    def run(self, progress: Progress | None = None) -> LoopRecord:
        """Everything up to the end of the last step."""
        now = 0.0
        for version in range(self._steps):
            self._rounds.begin(now, version)
            now, batch = self._rounds.gather(now, version)
            step = self._trainer.train(batch, now, version)
            self.record.steps.append(step)
            now = step.synced
            if progress is not None:
                progress(version + 1, self._steps)
        return self.record
