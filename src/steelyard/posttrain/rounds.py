"""Which trajectories begin when, and which groups of them a training step takes.

One rule makes every mode: a batch may begin once no sample of it can be more than ``behind`` weight versions old when
it is trained on. With 0 rollouts and training take turns, with 1 they overlap by one batch, with more they hardly wait.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from steelyard.posttrain.record import LoopRecord
from steelyard.posttrain.rollout import Attempt, RolloutStage
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.workload.trajectories import Trajectory
from steelyard.workload.trajectories.drift import Learning

Foresee = Callable[[Sequence[Trajectory]], None]


class Rounds:
    """Begins batches on a rollout stage and gathers whole groups from it."""

    def __init__(self, setup: PosttrainSetup, stage: RolloutStage, record: LoopRecord, foresee: Foresee) -> None:
        self._setup = setup
        self._stage = stage
        self._record = record
        self._foresee = foresee  # told of a batch before it begins, for estimators that know the answer
        self._groups = setup.scenario.trajectories.prompts
        self._size = setup.scenario.trajectories.group
        self._started = 0  # batches
        self._batch_of: dict[str, int] = {}  # by trajectory that has not ended
        self._open: dict[tuple[int, str], list[Attempt]] = defaultdict(list)  # by batch and prompt: who has ended
        self._ready: list[list[Attempt]] = []  # whole groups, in the order in which they became so
        self._unready: Counter[int] = Counter()  # groups that are not, by the version they began with

    def begin(self, now: float, version: int) -> None:
        """Start whatever may begin with weights of this version."""
        scenario = self._setup.scenario
        while self._started < min(version + scenario.behind + 1, scenario.steps):
            batch = self._setup.tasks.step(self._started, self._learnt())
            self._batch_of |= {each.id: self._started for each in batch}
            self._foresee(batch)
            self._stage.begin(batch, now, version)
            self._started += 1
            self._unready[version] += self._groups

    def gather(self, now: float, version: int) -> tuple[float, list[Attempt]]:
        """Roll out until there are groups enough for a training step, with all among them that must be in this one.

        When that was, and the batch: the oldest groups first, of these who was there first.
        """
        self._take_done()
        while missing := max(self._groups - len(self._ready), self._overdue(version)):
            now = self._stage.run(wanted=missing)
            self._take_done()
        self._ready.sort(key=lambda group: group[0].version)
        batch = [attempt for group in self._ready[: self._groups] for attempt in group]
        del self._ready[: self._groups]
        return now, batch

    def _learnt(self) -> float | None:
        """Effective samples trained on so far, where the scenario says what they are worth."""
        spec = self._setup.scenario.trajectories.learning
        if spec is None:
            return None
        learning = Learning(spec)
        return sum(learning.effective(step.staleness) for step in self._record.steps)

    def _overdue(self, version: int) -> int:
        """Groups under way that would be too old for the step after this one."""
        oldest = version - self._setup.scenario.behind
        return sum(count for begun, count in self._unready.items() if begun <= oldest)

    def _take_done(self) -> None:
        for attempt in self._stage.done:
            self._record.samples.append(attempt)
            who = attempt.trajectory
            key = self._batch_of.pop(who.id), who.prompt
            self._open[key].append(attempt)
            if len(self._open[key]) == self._size:
                self._ready.append(self._open.pop(key))
                self._unready[attempt.version] -= 1
        self._stage.done.clear()
