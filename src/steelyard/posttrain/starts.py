"""Draws the samples that the core starts, from the current policy."""

from __future__ import annotations

from dataclasses import dataclass, replace

from steelyard.balance.commands import Start
from steelyard.posttrain.learnt import learnt
from steelyard.posttrain.record import LoopRecord
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.records import Trajectory


@dataclass(slots=True)
class _Prompt:
    """A prompt by its index in the run. No sample of it is drawn twice."""

    place: int
    drawn: int = 0


class Starts:
    """Carries out `Start`. No two samples have the same name."""

    def __init__(self, setup: PosttrainSetup, stage: RolloutStage, record: LoopRecord) -> None:
        self._tasks, self._learning = setup.tasks, setup.scenario.trajectories.learning
        self._stage, self._record = stage, record
        self._prompts: dict[str, _Prompt] = {}  # by group
        self._names: set[str] = set()
        stage.driver.on(Start, self.start)

    def start(self, command: Start, at: float) -> None:
        """Start samples; the first ``command.first`` of each group before all others."""
        early: list[tuple[Trajectory, str]] = []
        late: list[tuple[Trajectory, str]] = []
        for i, sample in enumerate(self.samples(command)):
            (early if i % command.samples < command.first else late).append(sample)
        self._stage.begin(early + late, at, self._stage.version)

    def samples(self, command: Start) -> list[tuple[Trajectory, str]]:
        """Samples and their groups, group by group. All these groups must have equally many samples so far."""
        prompts = [self._prompts.setdefault(name, _Prompt(int(name))) for name in command.groups]
        which = range(prompts[0].drawn, prompts[0].drawn + command.samples)
        trained = learnt(self._learning, self._record)
        drawn = iter(self._tasks.draw([prompt.place for prompt in prompts], command.step, trained, which))
        made = []
        for name, prompt in zip(command.groups, prompts, strict=True):
            assert prompt.drawn == which.start, "samples are numbered"
            prompt.drawn += command.samples
            made += [(self._named(next(drawn), name), name) for _ in which]
        return made

    def _named(self, sample: Trajectory, group: str) -> Trajectory:
        """A sample with a unique name: a task can occur twice in a step, at the end of one epoch and in the next."""
        if sample.id in self._names:
            sample = replace(sample, id=f"{sample.id}@{group}")
        self._names.add(sample.id)
        return sample
