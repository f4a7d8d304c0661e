"""Rollout engines whose GPUs could train: which can be lent together, what training takes with them, what moves take.

The simulated loop and live runs on emulated engines share this.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from steelyard.balance.pool import PoolFormed
from steelyard.model import Layout
from steelyard.posttrain.changes import engines_begin, replica_to_rollout, replica_to_training
from steelyard.posttrain.roles import Gpus
from steelyard.posttrain.setup import PosttrainSetup, train_settings
from steelyard.posttrain.training import TrainingCost, TrainLayout


class Lending:
    """The replicas of a pool.

    Engines of one degree that together have the GPUs of a training replica form a hybrid replica. Some engines always
    roll out: those that form none, or else the last hybrid replica.
    """

    def __init__(self, setup: PosttrainSetup, own: TrainingCost, training: Gpus, engines: Sequence[Gpus]) -> None:
        """``own`` is the job without lent replicas, on the GPUs ``training``; ``engines`` has the GPUs of each."""
        self._setup, self._own = setup, own
        size = own.layout.replica_gpus
        self.training = training
        self.core = {n: training[n * size : (n + 1) * size] for n in range(own.layout.replicas)}
        self.units = hybrid_units(engines, size, len(self.core))
        self.gpus = {n: tuple(gpu for gpus in unit for gpu in gpus) for n, unit in self.units.items()}
        self.always = sum(map(len, engines)) - sum(map(len, self.gpus.values()))  # GPUs that always roll out
        self._compiled = cache(self._compile)

    def formed(self, at: float) -> PoolFormed:
        """What a pool is told of them."""
        return PoolFormed(at, tuple(self.core.items()), tuple(self.gpus.items()), self.always)

    def layout(self, lent: int) -> TrainLayout:
        """The job with this many more replicas."""
        own = self._own.layout
        return replace(own, dp=own.dp + lent * own.ranks_sharing_experts)

    def cost(self, lent: int) -> TrainingCost:
        """Training with this many more replicas."""
        return self._compiled(lent) if lent else self._own

    def train_seconds(self, lengths: np.ndarray) -> tuple[tuple[int, float], ...]:
        """Seconds of training on samples of these lengths, by number of replicas."""
        first = len(self.core)
        return tuple((first + lent, self._compiled(lent).step(lengths).seconds) for lent in range(len(self.units) + 1))

    def joining(self, lent: int) -> float:
        """Seconds for one more replica to get the state of a job that has ``lent``."""
        return replica_to_training(self._setup.model, self._setup.topology, self.layout(lent + 1)).seconds

    def leaving(self, number: int, lent: int) -> float:
        """Seconds until engines serve again, of a replica that leaves a job with ``lent``."""
        return replica_to_rollout(
            self._setup.model, self._setup.topology, self.layout(lent), self._engine(number)
        ).seconds

    def waking(self, number: int) -> float:
        """The same of a replica that has not joined."""
        model, topology = self._setup.model, self._setup.topology
        gpus = len(self.gpus[number])
        return engines_begin(model, topology, len(self.training), gpus, self._engine(number)).seconds

    def _engine(self, number: int) -> Layout:
        return Layout(tp=len(self.units[number][0]))

    def _compile(self, lent: int) -> TrainingCost:
        """Gradients are weighted by tokens, so replicas may have different numbers of samples."""
        settings = replace(train_settings(self._setup.scenario), batch=None)
        return self._setup.compile(self.layout(lent), settings)


def hybrid_units(engines: Iterable[Gpus], size: int, first: int) -> dict[int, tuple[Gpus, ...]]:
    """The engines of each hybrid replica of ``size`` GPUs, given by their GPUs. Small degrees are lent first."""
    by_degree: dict[int, list[Gpus]] = {}
    for gpus in engines:
        by_degree.setdefault(len(gpus), []).append(gpus)
    units = [
        tuple(same[begin : begin + size // tp])
        for tp, same in sorted(by_degree.items())
        if size % tp == 0
        for begin in range(0, len(same) - size // tp + 1, size // tp)
    ]
    if sum(map(len, units)) == sum(map(len, by_degree.values())):
        units.pop()
    return {first + number: unit for number, unit in enumerate(units)}
