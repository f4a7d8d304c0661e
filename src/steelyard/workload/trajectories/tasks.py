"""Sources of the trajectories of a training step: prompts in groups, generated or read from a file."""

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
from steelyard.workload.trajectories.batch import TrajectoryBatch
from steelyard.workload.trajectories.chance import keys
from steelyard.workload.trajectories.drift import Learning, learnt, scheduled
from steelyard.workload.trajectories.generate import generate, tasks_of
from steelyard.workload.trajectories.plan import compile_plan
from steelyard.workload.trajectories.read import read_trajectories

_TASK, _SAMPLE = 1, 2  # kinds of keys


class Trajectories(Protocol):
    """A deterministic source of trajectories by training step."""

    def step(self, step: int) -> Sequence[Trajectory]:
        """The trajectories of one step, group by group. The policy has trained on all samples of the earlier steps.

        That is the clock of drift in every run, whatever its samples' staleness: so all ways to run a scenario have the
        same trajectories.
        """

    def draw(self, prompts: Sequence[int], samples: range | None = None) -> Sequence[Trajectory]:
        """The same for prompts of one step, by their position in the order of all steps; these ``samples`` of each,
        which may be more than a group has."""


def trajectories_of(spec: TrajectorySpec | FileTrajectories, seed: int, base_dir: Path = Path()) -> Trajectories:
    """The source that a scenario asks for."""
    if isinstance(spec, FileTrajectories):
        return RecordedTasks(spec, seed, base_dir)
    return GeneratedTasks(spec, seed, base_dir)


class GeneratedTasks:
    """Tasks by epochs, each in its own order; an incomplete batch at the end of an epoch is dropped.

    A trajectory depends only on seed, task, sample and step, not on the group's size or the rest of the batch.
    """

    def __init__(self, spec: TrajectorySpec, seed: int, base_dir: Path = Path()) -> None:
        self._spec = spec
        self._seed = seed
        self._plan = compile_plan(spec, base_dir)
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def step(self, step: int) -> TrajectoryBatch:
        prompts = self._spec.prompts
        return self.draw(range(step * prompts, (step + 1) * prompts))

    def draw(self, prompts: Sequence[int], samples: range | None = None) -> TrajectoryBatch:
        epoch = self._spec.tasks // self._spec.prompts * self._spec.prompts
        chosen = np.array([self._order(place // epoch)[place % epoch] for place in prompts])
        step = prompts[0] // self._spec.prompts
        assert all(place // self._spec.prompts == step for place in prompts), "prompts are of one step"
        return self.samples(chosen, step, self.factors(step), samples)

    def factors(self, step: int) -> Factors:
        """Factors on lengths at a step."""
        drift, learning = self._spec.drift, self._spec.learning
        if isinstance(drift, ScheduleDrift):
            return scheduled(drift, step)
        if isinstance(drift, LearningDrift):
            assert learning is not None
            return learnt(drift, Learning(learning).skill(step * self._spec.prompts * self._spec.group))
        return Factors()

    def samples(self, tasks: Ints, step: int, factors: Factors, which: range | None = None) -> TrajectoryBatch:
        """A group of samples for each of these tasks, or the samples given by ``which``."""
        which = range(self._spec.group) if which is None else which
        group = len(which)
        task_keys = keys(self._seed, _TASK, tasks.astype(np.uint64)).repeat(group)
        sample = np.tile(np.array(which), len(tasks))
        shared = tasks_of(self._plan, task_keys)
        made = generate(self._plan, shared, keys(task_keys, _SAMPLE, step, sample.astype(np.uint64)), factors)
        return TrajectoryBatch(
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


def _not_empty(recorded: Trajectory) -> Trajectory:
    """With a prompt and turns of at least one token each, as engines need them."""
    if recorded.prompt_tokens and all(turn.generated for turn in recorded.turns):
        return recorded
    turns = tuple(replace(turn, generated=max(1, turn.generated)) for turn in recorded.turns)
    return replace(recorded, prompt_tokens=max(1, recorded.prompt_tokens), turns=turns)


class RecordedTasks:
    """Prompts of a file drawn with replacement. A group uses each trajectory of its prompt once before any twice.

    Recorded lengths do not drift. Lengths of 0 count as 1.
    """

    def __init__(self, spec: FileTrajectories, seed: int, base_dir: Path = Path()) -> None:
        self._spec = spec
        self._seed = seed
        by_prompt: dict[str, list[Trajectory]] = {}
        found = [_not_empty(each) for each in read_trajectories(base_dir / spec.file)]
        self.longest = max(found, key=lambda each: each.tokens)
        for each in found:
            by_prompt.setdefault(each.prompt, []).append(each)
        self._groups = list(by_prompt.values())
        self._drawn = lru_cache(maxsize=4)(self._slots)

    def step(self, step: int) -> list[Trajectory]:
        prompts = self._spec.prompts
        return self.draw(range(step * prompts, (step + 1) * prompts))

    def draw(self, prompts: Sequence[int], samples: range | None = None) -> list[Trajectory]:
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
        """The prompts of a batch, and the order of each one's trajectories, as many as a group needs."""
        dice = np.random.default_rng([self._seed, batch])
        found = []
        for number in dice.integers(len(self._groups), size=self._spec.prompts).tolist():
            group = self._groups[number]
            rounds = -(-self._spec.group // len(group))
            order = np.concatenate([dice.permutation(len(group)) for _ in range(rounds)])
            found.append((group, order.tolist()))
        return found
