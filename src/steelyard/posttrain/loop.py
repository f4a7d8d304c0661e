"""The post-training loop in virtual time: rollouts begin as weights allow, groups are trained on, weights go back.

One rule makes every mode: a batch may begin once no sample of it can be more than ``behind`` weight versions old when
it is trained on. With 0 rollouts and training take turns, with 1 they overlap by one batch, with more they hardly wait.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from steelyard.balance.core import RolloutCore
from steelyard.posttrain.rollout import Attempt, RolloutStage
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.training import TrainingTime
from steelyard.workload.trajectories import Trajectory
from steelyard.workload.trajectories.drift import Learning

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class StepRecord:
    """One training step: when its samples were there, when it was trained, when engines had its weights."""

    step: int
    waited_from: float  # when the trainer had nothing to do
    begun: float
    trained: float
    synced: float
    time: TrainingTime
    samples: int
    tokens: int  # generated ones of its samples
    staleness: tuple[int, ...]  # of each sample: versions behind


@dataclass
class LoopRecord:
    """All that happened."""

    steps: list[StepRecord] = field(default_factory=list)
    samples: list[Attempt] = field(default_factory=list)  # in the order in which they ended


class Loop:
    """Drives a rollout stage and a trainer through a number of steps."""

    def __init__(
        self,
        setup: PosttrainSetup,
        core: RolloutCore,
        foresee: Callable[[Sequence[Trajectory]], None] = lambda _: None,
    ) -> None:
        self.setup = setup
        self._foresee = foresee  # told of a batch before it begins, for estimators that know the answer
        scenario = setup.scenario
        self.stage = RolloutStage(core, setup.kinds, scenario.engine.block_size)
        self.record = LoopRecord()
        self._groups = scenario.trajectories.prompts
        self._size = scenario.trajectories.group
        self._started = 0  # batches
        self._version = 0
        self._batch_of: dict[str, int] = {}  # by trajectory that has not ended
        self._open: dict[tuple[int, str], list[Attempt]] = defaultdict(list)  # by batch and prompt: who has ended
        self._ready: list[list[Attempt]] = []  # whole groups, in the order in which they became so
        self._unready: Counter[int] = Counter()  # groups that are not, by the version they began with
        self._now = 0.0
        number = 0
        for bucket in scenario.rollout:
            for _ in range(bucket.replicas):
                self.stage.add(number, bucket.tp, 0.0)
                number += 1

    def run(self, progress: Progress | None = None) -> LoopRecord:
        """Everything up to the end of the last step."""
        steps = self.setup.scenario.steps
        idle_since = 0.0
        while self._version < steps:
            self._begin_batches()
            self._gather()
            idle_since = self._train(idle_since)
            if progress is not None:
                progress(self._version, steps)
        return self.record

    def _begin_batches(self) -> None:
        scenario = self.setup.scenario
        while self._started < min(self._version + scenario.behind + 1, scenario.steps):
            batch = self.setup.tasks.step(self._started, self._learnt())
            self._batch_of |= {each.id: self._started for each in batch}
            self._foresee(batch)
            self.stage.begin(batch, self._now, self._version)
            self._started += 1
            self._unready[self._version] += self._groups

    def _learnt(self) -> float | None:
        """Effective samples trained on so far, where the scenario says what they are worth."""
        spec = self.setup.scenario.trajectories.learning
        if spec is None:
            return None
        learning = Learning(spec)
        return sum(learning.effective(step.staleness) for step in self.record.steps)

    def _gather(self) -> None:
        """Roll out until there are groups enough for a training step, with all among them that must be in this one."""
        self._take_done()
        while missing := max(self._groups - len(self._ready), self._overdue()):
            self._now = self.stage.run(wanted=missing)
            self._take_done()

    def _overdue(self) -> int:
        """Groups under way that would be too old for the step after this one."""
        oldest = self._version - self.setup.scenario.behind
        return sum(count for version, count in self._unready.items() if version <= oldest)

    def _take_done(self) -> None:
        for attempt in self.stage.done:
            self.record.samples.append(attempt)
            who = attempt.trajectory
            key = self._batch_of.pop(who.id), who.prompt
            self._open[key].append(attempt)
            if len(self._open[key]) == self._size:
                self._ready.append(self._open.pop(key))
                self._unready[attempt.version] -= 1
        self.stage.done.clear()

    def _train(self, idle_since: float) -> float:
        """Train on the first groups there are, and hand out the weights; when the trainer is free again."""
        setup = self.setup
        self._ready.sort(key=lambda group: group[0].version)  # the oldest first, of these who was there first
        batch = [attempt for group in self._ready[: self._groups] for attempt in group]
        del self._ready[: self._groups]
        begun = self._now + setup.before_training
        time = setup.training.step(np.array([attempt.context for attempt in batch]))
        trained = begun + time.seconds
        self.stage.run(until=trained)
        synced = trained + setup.sync
        self.stage.new_weights(trained, synced)
        self.stage.run(until=synced)
        self.record.steps.append(
            StepRecord(
                step=self._version,
                waited_from=idle_since,
                begun=begun,
                trained=trained,
                synced=synced,
                time=time,
                samples=len(batch),
                tokens=sum(attempt.trajectory.generated for attempt in batch),
                staleness=tuple(self._version - attempt.version for attempt in batch),
            )
        )
        self._version += 1
        self._now = synced
        return synced
