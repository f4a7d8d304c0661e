"""Where the trajectories of a training step come from: prompts by groups, generated or out of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np

from steelyard.records import Ints, Trajectory
from steelyard.scenario.rollouts import (
    Factors,
    FileTrajectories,
    LearningDrift,
    ScheduleDrift,
    TrajectorySpec,
)
from steelyard.workload.trajectories.batch import Batch
from steelyard.workload.trajectories.chance import keys
from steelyard.workload.trajectories.drift import Learning, learnt, scheduled
from steelyard.workload.trajectories.generate import generate, tasks_of
from steelyard.workload.trajectories.plan import compile_plan
from steelyard.workload.trajectories.read import read_trajectories

_TASK, _SAMPLE = 1, 2  # kinds of keys


class Trajectories(Protocol):
    """A source of trajectories by training step; asking twice gives the same."""

    def step(self, step: int, trained: float | None = None) -> Sequence[Trajectory]:
        """Those of one step, group by group. ``trained`` is how many effective samples the policy has learnt from
        (see Learning); not given, it is all of the steps before, fresh."""

    def draw(
        self, prompts: Sequence[int], step: int, trained: float | None = None, samples: range | None = None
    ) -> Sequence[Trajectory]:
        """The same for prompts by their place in the order of all steps, as the policy of one step answers them; these
        ``samples`` of each, which may be more than a group has."""


def trajectories_of(spec: TrajectorySpec | FileTrajectories, seed: int, base_dir: Path = Path()) -> Trajectories:
    """The source that a scenario asks for."""
    if isinstance(spec, FileTrajectories):
        return RecordedTasks(spec, seed, base_dir)
    return GeneratedTasks(spec, seed, base_dir)


class GeneratedTasks:
    """Tasks by epochs, each in an order of its own; what is left over at the end of an epoch is not used in it.

    A trajectory depends on seed, task, sample and step alone (and on drift): neither on the group's size nor on who
    else is in the batch.
    """

    def __init__(self, spec: TrajectorySpec, seed: int, base_dir: Path = Path()) -> None:
        self._spec = spec
        self._seed = seed
        self._plan = compile_plan(spec, base_dir)
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def step(self, step: int, trained: float | None = None) -> Batch:
        prompts = self._spec.prompts
        return self.draw(range(step * prompts, (step + 1) * prompts), step, trained)

    def draw(
        self, prompts: Sequence[int], step: int, trained: float | None = None, samples: range | None = None
    ) -> Batch:
        epoch = self._spec.tasks // self._spec.prompts * self._spec.prompts
        chosen = np.array([self._order(place // epoch)[place % epoch] for place in prompts])
        return self.samples(chosen, step, self.factors(step, trained), samples)

    def factors(self, step: int, trained: float | None = None) -> Factors:
        """How far lengths have moved by a step."""
        drift, learning = self._spec.drift, self._spec.learning
        if isinstance(drift, ScheduleDrift):
            return scheduled(drift, step)
        if isinstance(drift, LearningDrift):
            assert learning is not None
            fresh = step * self._spec.prompts * self._spec.group
            return learnt(drift, Learning(learning).skill(fresh if trained is None else trained))
        return Factors()

    def samples(self, tasks: Ints, step: int, factors: Factors, which: range | None = None) -> Batch:
        """A group of samples for each of these tasks, or other samples of them."""
        which = range(self._spec.group) if which is None else which
        group = len(which)
        task_keys = keys(self._seed, _TASK, tasks.astype(np.uint64)).repeat(group)
        sample = np.tile(np.array(which), len(tasks))
        shared = tasks_of(self._plan, task_keys)
        made = generate(self._plan, shared, keys(task_keys, _SAMPLE, step, sample.astype(np.uint64)), factors)
        return Batch(
            policy=f"step-{step}",
            prompts=[name for task in tasks.tolist() for name in [f"{self._spec.name}-{task}"] * group],
            samples=sample,
            prompt_tokens=shared.prompt_tokens,
            ends=made.ends,
            tools=self._plan.tools.names,
            first=np.searchsorted(made.turns.who, np.arange(len(sample) + 1)),
            generated=made.turns.generated,
            tool=made.turns.tool,
            outcome=made.turns.outcome,
            returned=made.turns.returned,
            latency=made.turns.latency,
        )

    def _shuffled(self, epoch: int) -> Ints:
        return np.random.default_rng([self._seed, epoch]).permutation(self._spec.tasks)


class RecordedTasks:
    """Prompts of a file drawn with replacement. A group has each trajectory of its prompt once before any twice.

    Lengths do not drift: a file is what it is.
    """

    def __init__(self, spec: FileTrajectories, seed: int, base_dir: Path = Path()) -> None:
        self._spec = spec
        self._seed = seed
        by_prompt: dict[str, list[Trajectory]] = {}
        for each in read_trajectories(base_dir / spec.file):
            by_prompt.setdefault(each.prompt, []).append(each)
        self._groups = list(by_prompt.values())
        self._drawn = lru_cache(maxsize=4)(self._slots)

    def step(self, step: int, trained: float | None = None) -> list[Trajectory]:
        prompts = self._spec.prompts
        return self.draw(range(step * prompts, (step + 1) * prompts), step, trained)

    def draw(
        self, prompts: Sequence[int], step: int, trained: float | None = None, samples: range | None = None
    ) -> list[Trajectory]:
        made: list[Trajectory] = []
        for place in prompts:
            batch, slot = divmod(place, self._spec.prompts)
            group, order = self._drawn(batch)[slot]
            for sample in range(self._spec.group) if samples is None else samples:
                if sample < len(order):
                    which = order[sample]
                else:
                    further = np.random.default_rng([self._seed, batch, slot, sample // len(group)])
                    which = int(further.permutation(len(group))[sample % len(group)])
                made.append(replace(group[which], id=f"{batch}/{slot}/{sample}"))
        return made

    def _slots(self, batch: int) -> list[tuple[list[Trajectory], list[int]]]:
        """The prompts of a batch, and the order of each one's trajectories, until all of a group are had."""
        dice = np.random.default_rng([self._seed, batch])
        found = []
        for number in dice.integers(len(self._groups), size=self._spec.prompts).tolist():
            group = self._groups[number]
            rounds = -(-self._spec.group // len(group))
            order = np.concatenate([dice.permutation(len(group)) for _ in range(rounds)])
            found.append((group, order.tolist()))
        return found
