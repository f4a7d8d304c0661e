"""Prompts in the order in which a run takes them, and new samples of each whenever somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from steelyard.records import Trajectory
from steelyard.workload.trajectories import Trajectories

Foresee = Callable[[Sequence[Trajectory]], None]


@dataclass(slots=True)
class Prompt:
    """One that was taken, and how many samples of it have been drawn; no sample is drawn twice."""

    place: int  # among all of the run
    drawn: int = 0
    version: float = inf  # of the weights that its oldest sample began with

    @property
    def name(self) -> str:
        """Of its group: a task that comes once more, in a later epoch, is another prompt."""
        return str(self.place)


class Draws:
    """Takes prompts one after the other; no two samples have the same name."""

    def __init__(self, tasks: Trajectories, foresee: Foresee) -> None:
        self._tasks = tasks
        self._foresee = foresee  # told of samples before they begin, for estimators that know the answer
        self.taken = 0  # prompts
        self._names: set[str] = set()

    def more(self, prompts: int) -> list[Prompt]:
        """The next ones."""
        self.taken += prompts
        return [Prompt(place) for place in range(self.taken - prompts, self.taken)]

    def samples(self, prompts: Sequence[Prompt], count: int, step: int, trained: float | None) -> list[Trajectory]:
        """So many of each, prompt by prompt, as the policy of a step gives them. All have had as many before."""
        first = prompts[0].drawn
        which = range(first, first + count)
        drawn = iter(self._tasks.draw([prompt.place for prompt in prompts], step, trained, which))
        made = []
        for prompt in prompts:
            assert prompt.drawn == first, "samples are numbered"
            prompt.drawn += count
            made += [self._named(next(drawn), prompt) for _ in which]
        self._foresee(made)
        return made

    def _named(self, sample: Trajectory, prompt: Prompt) -> Trajectory:
        """A task can come twice within a step, at the end of one epoch and in the next."""
        if sample.id in self._names:
            sample = replace(sample, id=f"{sample.id}@{prompt.name}")
        self._names.add(sample.id)
        return sample
