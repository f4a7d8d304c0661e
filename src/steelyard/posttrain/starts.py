"""Draws the samples that the core starts, from the current policy."""

from __future__ import annotations

from array import array
from dataclasses import replace

from steelyard.balance.commands import Start
from steelyard.posttrain.learnt import learnt
from steelyard.posttrain.record import LoopRecord
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.records import Trajectory


class Starts:
    """Carries out `Start`."""

    def __init__(self, setup: PosttrainSetup, stage: RolloutStage, record: LoopRecord) -> None:
        self._stage = stage
        self._drawing = Drawing(setup, record)
        stage.driver.on(Start, self.start)

    def start(self, command: Start, at: float) -> None:
        self._stage.begin(self._drawing.in_order(command), at, self._stage.version)


class Drawing:
    """Draws samples. No sample of a prompt is drawn twice, and no two samples have the same name."""

    def __init__(self, setup: PosttrainSetup, record: LoopRecord) -> None:
        self._tasks, self._learning = setup.tasks, setup.scenario.trajectories.learning
        self._record = record
        self._drawn = array("i")  # samples of each prompt, by its place in the run
        self._names: dict[int, set[str]] = {}  # of samples, by the step that they are for
        self._steps = setup.scenario.staleness_bound + 2  # that may be under way, and one more

    def in_order(self, command: Start) -> list[tuple[Trajectory, str]]:
        """Samples in the order in which they begin; the first ``command.first`` of each group before all others."""
        early: list[tuple[Trajectory, str]] = []
        late: list[tuple[Trajectory, str]] = []
        for i, sample in enumerate(self.samples(command)):
            (early if i % command.samples < command.first else late).append(sample)
        return early + late

    def samples(self, command: Start) -> list[tuple[Trajectory, str]]:
        """Samples and their groups, group by group. All these groups must have equally many samples so far."""
        places = [int(name) for name in command.groups]
        self._drawn.extend([0] * (max(places) + 1 - len(self._drawn)))
        which = range(self._drawn[places[0]], self._drawn[places[0]] + command.samples)
        trained = learnt(self._learning, self._record)
        drawn = iter(self._tasks.draw(places, command.step, trained, which))
        names = self._names_of(command.step)
        made = []
        for group, place in zip(command.groups, places, strict=True):
            assert self._drawn[place] == which.start, "samples are numbered"
            self._drawn[place] = which.stop
            made += [(_named(next(drawn), group, names), group) for _ in which]
        return made

    def _names_of(self, step: int) -> set[str]:
        """The names of a step's samples so far. Names say the step, so those of steps long past cannot come again."""
        if step not in self._names:
            oldest = step - self._steps
            self._names = {each: names for each, names in self._names.items() if each >= oldest} | {step: set()}
        return self._names[step]


def _named(sample: Trajectory, group: str, names: set[str]) -> Trajectory:
    """A sample with a unique name: a task can occur twice in a step, at the end of one epoch and in the next."""
    if sample.id in names:
        sample = replace(sample, id=f"{sample.id}@{group}")
    names.add(sample.id)
    return sample
