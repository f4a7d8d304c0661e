"""Libra's global planner (arXiv 2606.03077): pruned training layouts, replicas by dynamic programming over requests.

Layouts are pruned by tensor-parallel exchange and by pipeline bubble. Those that do not fit into memory are none of the
world's options.

The published cost model divides weight reads by the degree twice, scales a replica's cache with its GPUs, and treats
all requests of a replica as the mean one. ``Corrected`` is the same search with the fluid model of `makespan.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, inf

import numpy as np

from steelyard.balance.plan.buckets import Rollout
from steelyard.balance.plan.makespan import Classes, ReplicaModel, makespans, stratified
from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.search import Search
from steelyard.balance.plan.world import Bucket, TrainOption, World
from steelyard.records import Floats, Ints

REQUESTS = 64  # that represent a batch
_BUBBLE = 0.3  # share of a pipeline's time: layouts above it are pruned
_EXCHANGE = 0.5  # share of a layer's time in exchanges of tensor-parallel ranks: likewise


def libra(world: World, published: bool = False) -> Search:
    """Libra's search, for `Searching`."""
    usable = partial(_unpruned, world.exchange)
    if published:
        return Search(world, frontier=_published, usable=usable, lengths=means)
    return Search(world, frontier=_corrected, usable=usable)


def _published(world: World, measured: Measured) -> ByReplica:
    return ByReplica(world, measured, Published(world))


def _corrected(world: World, measured: Measured) -> ByReplica:
    return ByReplica(world, measured, Corrected(world))


def _unpruned(exchange: Mapping[TrainOption, float], option: TrainOption, lengths: Ints) -> bool:
    if exchange.get(option, 0.0) > _EXCHANGE:
        return False
    batches = max(1, ceil(int(lengths.sum()) / (option.budget * option.dp)))
    return (option.pp - 1) / (option.pp + batches - 1) <= _BUBBLE


def means(measured: Measured) -> Ints:
    return np.full(len(measured), round(float(measured.context.mean())), dtype=np.int64)


@dataclass(frozen=True)
class Published:
    """Seconds of a replica for a range of requests: mean tokens times a step, times the waves that its cache needs."""

    world: World

    def seconds(self, tp: int, requests: Classes, first: Ints, last: Ints) -> Floats:
        model = self.world.replicas[tp]
        sums = [np.concatenate([[0.0], np.cumsum(column * requests.count)]) for column in _columns(requests)]
        count, tokens, context = (column[last] - column[first] for column in sums)
        waves = np.ceil(np.maximum(context / (tp * model.capacity), count / model.seats))
        step = self._step(tp) + model.speed.read / tp * context / waves
        return np.asarray(tokens / count * waves * step)

    def _step(self, tp: int) -> float:
        """A decode step: what reading weights takes on one GPU, divided by the degree twice."""
        times = {degree: model.speed.decode[0][1] for degree, model in self.world.replicas.items()}
        if len(times) < 2:
            return times[tp]
        less, more = sorted(times)[:2]
        weights = (times[less] - times[more]) / (1 / less - 1 / more)
        return max(times[tp] - weights / tp, 0.0) + weights / tp**2


@dataclass(frozen=True)
class Corrected:
    """Seconds of a replica for a range of requests, by the fluid model."""

    world: World

    def seconds(self, tp: int, requests: Classes, first: Ints, last: Ints) -> Floats:
        below = np.concatenate([[0.0], np.cumsum(requests.count)])
        model: ReplicaModel = self.world.replicas[tp]
        return makespans(model, requests, below[last] - below[first], first, last, self.world.sticky)


class ByReplica:
    """``_best[g, i]`` is the least makespan of the first i requests on g GPUs, over the degree of the last replica and
    the requests before i that it serves. A request stands for a stratum of trajectories."""

    def __init__(self, world: World, measured: Measured, costs: Published | Corrected) -> None:
        self._requests = stratified(measured, REQUESTS)
        self._degrees = sorted(tp for tp in world.replicas if tp <= world.gpus)
        number = len(self._requests)
        last, first = np.tril_indices(number + 1, -1)
        self.evaluations = len(first) * len(self._degrees)
        self._tables = {}
        for tp in self._degrees:
            table = np.full((number + 1, number + 1), inf)
            table[first, last] = costs.seconds(tp, self._requests, first, last)
            self._tables[tp] = table
        self._best: Floats = np.full((world.gpus + 1, number + 1), inf)
        self._best[:, 0] = 0.0
        for gpus in range(1, world.gpus + 1):
            for tp in self._degrees:
                if tp <= gpus:
                    reached = np.maximum(self._best[gpus - tp][:, None], self._tables[tp]).min(axis=0)
                    np.minimum(self._best[gpus], reached, out=self._best[gpus])

    def seconds(self, gpus: int) -> float:
        return float(self._best[gpus, -1])

    def rollout(self, gpus: int) -> Rollout:
        upto, left = len(self._requests), gpus
        replicas: dict[int, int] = {}
        most: dict[int, int] = {}
        while upto > 0:
            tp, first = self._last_replica(left, upto)
            replicas[tp] = replicas.get(tp, 0) + 1
            most[tp] = max(most.get(tp, 0), int(self._requests.most[first:upto].max()))
            left, upto = left - tp, first
        buckets = tuple(Bucket(tp, replicas[tp], most[tp]) for tp in sorted(replicas))
        return Rollout(buckets, self.seconds(gpus))

    def _last_replica(self, gpus: int, upto: int) -> tuple[int, int]:
        """Its degree, and where its requests begin. Ties go to the smallest degree."""
        for tp in self._degrees:
            if tp <= gpus:
                reached = np.maximum(self._best[gpus - tp], self._tables[tp][:, upto])
                first = int(reached.argmin())
                if reached[first] <= self._best[gpus, upto]:
                    return tp, first
        raise AssertionError("no replica leads here")


def _columns(requests: Classes) -> tuple[Floats, Floats, Floats]:
    return np.ones(len(requests)), requests.generated, requests.context
