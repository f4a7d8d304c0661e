"""Engines on the GPUs of training, which generate while it waits for samples.

They wake when training has nothing to do, unless its last wait was over before they would have been up. When its
samples are there they sleep again: what runs on them goes on elsewhere, without its caches, and training begins once
their memory is free. The states of training are taken to wait in the host's memory, as with co-located stages.
"""

from __future__ import annotations

from math import inf

from steelyard.model import Layout, weight_bytes
from steelyard.posttrain.roles import Gpus, Roles
from steelyard.posttrain.rollout import RolloutStage
from steelyard.posttrain.setup import Job, PosttrainSetup
from steelyard.posttrain.sync import reshard, sleep, wake


class Waking:
    """Wakes and stops the engines on the GPUs of training."""

    def __init__(self, setup: PosttrainSetup, stage: RolloutStage, roles: Roles) -> None:
        self._setup, self._stage, self._roles = setup, stage, roles
        self._job = setup.job
        self._training: Gpus = ()
        self._numbers: dict[Gpus, int] = {}  # of engines that have been awake
        self._awake: list[int] = []
        self._since = 0.0  # when training began to wait
        self._last_wait = inf  # seconds

    def waits(self, at: float, job: Job) -> None:
        """The job may have to wait for samples from now on. Engines that wake take trajectories at once, and begin when
        they have the weights."""
        assert self._roles.training is not None, "it has begun"
        self._job, self._training, self._since = job, self._roles.training.gpus, at
        tp = self._degree()
        if tp is None:
            return
        weights = reshard(self._setup.model, self._setup.topology, job.cost.layout, Layout(tp=tp)).seconds
        seconds = weights + wake(self._setup.topology, 0.0).seconds
        if self._last_wait <= seconds + self._sleep(tp):
            return
        self._roles.stop_training(at)
        for block in self._blocks(tp):
            number = self._roles.start_engine(block, at, self._numbers.get(block))
            self._stage.engines[number].clock = at + seconds
            self._numbers[block] = number
            self._awake.append(number)

    def over(self, at: float) -> float:
        """Its samples are there. Returns the seconds until it may begin."""
        self._last_wait = at - self._since
        if not self._awake:
            return 0.0
        tp = len(self._roles.engines[self._awake[0]].gpus)
        for number in self._awake:
            self._roles.stop_engine(number, at)
        self._awake.clear()
        self._roles.train_on(self._training, at)
        return self._sleep(tp)

    def _degree(self) -> int | None:
        """The largest degree of the engines that run which divides the GPUs of training."""
        degrees = (tp for tp in self._stage.tp.values() if self._job.cost.layout.gpus % tp == 0)
        return max(degrees, default=None)

    def _sleep(self, tp: int) -> float:
        return sleep(self._setup.topology, weight_bytes(self._setup.model, tp=tp)).seconds

    def _blocks(self, tp: int) -> list[Gpus]:
        """GPUs of each engine, all of one node."""
        nodes: dict[int, list[int]] = {}
        for gpu in self._training:
            nodes.setdefault(gpu // self._roles.node, []).append(gpu)
        firsts = [(gpus, first) for gpus in nodes.values() for first in range(0, len(gpus) - tp + 1, tp)]
        return [tuple(gpus[first : first + tp]) for gpus, first in firsts]
