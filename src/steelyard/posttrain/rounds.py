"""Which trajectories begin when, and which groups of them a training step takes.

One rule makes every mode: a batch may begin once no sample of it can be more than ``behind`` weight versions old when
it is trained on. With 0 rollouts and training take turns, with 1 they overlap by one batch, with more they hardly wait.
"""

from __future__ import annotations

from collections import defaultdict

from steelyard.balance.log import Journal
from steelyard.posttrain.attempt import Attempt, Part, Parts, least_part
from steelyard.posttrain.draws import Foresee
from steelyard.posttrain.learnt import learnt
from steelyard.posttrain.record import LoopRecord
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.posttrain.tail_rounds import TailRounds


def rounds_of(
    setup: PosttrainSetup, stage: RolloutStage, record: LoopRecord, foresee: Foresee, journal: Journal | None = None
) -> Rounds | TailRounds:
    """Who begins trajectories and gathers batches in a scenario: a tail policy, where it has one."""
    if setup.scenario.tail.kind == "none":
        return Rounds(setup, stage, record, foresee)
    return TailRounds(setup, stage, record, foresee, journal)


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

    def begin(self, now: float, version: int) -> None:
        """Start whatever may begin with weights of this version."""
        scenario = self._setup.scenario
        while self._started < min(version + scenario.behind + 1, scenario.steps):
            trained = learnt(scenario.trajectories.learning, self._record)
            batch = self._setup.tasks.step(self._started, trained)
            self._batch_of |= {each.id: self._started for each in batch}
            self._foresee(batch)
            self._stage.begin(batch, now, version)
            self._started += 1

    def gather(self, now: float, version: int) -> Parts:
        """Roll out until there are groups enough for a training step. Where training takes groups as they come it is
        given all that are there when it is free, but not few at a time: few sequences are dealt out to ranks less
        evenly, and fill fewer micro-batches."""
        batch: list[Attempt] = []
        self._record.batches.append(batch)
        wanted = self._groups
        least = least_part(wanted, self._setup.scenario.streaming)
        while wanted:
            now = self._wait(least if wanted >= 2 * least else wanted, now, version)
            own, later = self._sorted(version)
            most = wanted if len(own) >= wanted else wanted - least
            part, self._ready = own[:most], own[most:] + later
            wanted -= len(part)
            batch += [attempt for group in part for attempt in group]
            free = yield Part(now, batch[-len(part) * self._size :], last=not wanted)
            if wanted:
                self._stage.run(until=free)

    def _wait(self, least: int, now: float, version: int) -> float:
        """Until so many groups are there that a step may take."""
        self._take_done()
        while missing := max(least - len(self._sorted(version)[0]), 0):
            now = self._stage.run(wanted=missing)
            self._take_done()
        return now

    def _sorted(self, version: int) -> tuple[list[list[Attempt]], list[list[Attempt]]]:
        """Groups that are there: those that a step may take, and those that must leave the places to older ones, of
        which there are as many under way as all steps take until they would be too old."""
        latest = max(0, version - self._setup.scenario.behind)
        own, later = list[list[Attempt]](), list[list[Attempt]]()
        for group in self._ready:
            (own if group[0].version <= latest else later).append(group)
        return own, later

    def _take_done(self) -> None:
        for attempt in self._stage.done:
            self._record.samples.append(attempt)
            who = attempt.trajectory
            key = self._batch_of.pop(who.id), who.prompt
            self._open[key].append(attempt)
            if len(self._open[key]) == self._size:
                self._ready.append(self._open.pop(key))
        self._stage.done.clear()
