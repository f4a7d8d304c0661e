"""Draws the samples that the core starts."""

from __future__ import annotations

from array import array
from itertools import groupby

from steelyard.balance.commands import Start
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.setup import PosttrainSetup
from steelyard.records import Trajectory


class Starts:
    """Carries out `Start`."""

    def __init__(self, setup: PosttrainSetup, stage: RolloutStage) -> None:
        self._stage = stage
        self._drawing = Drawing(setup)
        self._began: dict[int, float] = {}  # when the first samples for a step did
        stage.driver.on(Start, self.start)

    def start(self, command: Start, at: float) -> None:
        first = self._began.setdefault(command.step, at)
        self._stage.begin(self._drawing.in_order(command), at, self._stage.version, first)


class Drawing:
    """Draws samples. No sample of a prompt is drawn twice, and no two samples have the same name.

    A sample depends on its prompt's place in the run and on its own among those of the prompt. So all ways to run a
    scenario have the same samples, however stale they are.
    """

    def __init__(self, setup: PosttrainSetup) -> None:
        self._tasks, self._prompts = setup.tasks, setup.scenario.trajectories.prompts
        self._drawn = array("i")  # samples of each prompt, by its place in the run

    def in_order(self, command: Start) -> list[tuple[Trajectory, str]]:
        """Samples in the order in which they begin; the first ``command.first`` of each group before all others."""
        early: list[tuple[Trajectory, str]] = []
        late: list[tuple[Trajectory, str]] = []
        for i, sample in enumerate(self.samples(command)):
            (early if i % command.samples < command.first else late).append(sample)
        return early + late

    def samples(self, command: Start) -> list[tuple[Trajectory, str]]:
        """Samples and their groups, group by group."""
        places = [int(name) for name in command.groups]
        self._drawn.extend([0] * (max(places) + 1 - len(self._drawn)))
        made: list[tuple[Trajectory, str]] = []
        for (_, had), alike in groupby(places, lambda place: (place // self._prompts, self._drawn[place])):
            together = list(alike)
            which = range(had, had + command.samples)
            drawn = iter(self._tasks.draw(together, which))
            for place in together:
                self._drawn[place] = which.stop
                made += [(next(drawn), str(place)) for _ in which]
        return made
