"""Queues, batches and KV cache over time, of each pool and of the whole fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from steelyard.records.columns import Floats, in_parts
from steelyard.sim.plots.axis import TimeAxis
from steelyard.sim.plots.binned import PARTS, Binned, integrals, raise_peaks
from steelyard.sim.summary import PoolFigures

if TYPE_CHECKING:
    from steelyard.sim.result import Result

_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class PoolLoad:
    """Integrals over parts of bins: seconds in steps, waiting and running requests, members of batches, shares of KV
    blocks; and the largest such share of a replica in each bin."""

    axis: TimeAxis
    replicas: int
    steps: int
    sums: Floats
    peak: Floats
    has_blocks: bool

    def waiting(self) -> Binned:
        """Requests that wait, in all replicas together."""
        return Binned.of(self.sums[1], self.axis.width / PARTS)

    def running(self) -> Binned:
        """Requests that run, in all replicas together."""
        return Binned.of(self.sums[2], self.axis.width / PARTS)

    def batch(self) -> Binned:
        """Requests in a step, on average over the steps under way."""
        return Binned.of(self.sums[3], self.sums[0])

    def kv(self) -> Binned:
        """Share of KV blocks in use, on average over replicas."""
        return Binned.of(self.sums[4], self.axis.width / PARTS * self.replicas)

    @classmethod
    def together(cls, loads: Sequence[PoolLoad]) -> PoolLoad:
        """That of several pools."""
        return cls(
            loads[0].axis,
            sum(each.replicas for each in loads),
            sum(each.steps for each in loads),
            np.sum([each.sums for each in loads], axis=0),
            np.max([each.peak for each in loads], axis=0),
            any(each.has_blocks for each in loads),
        )


def load_of(result: Result, axis: TimeAxis, pool: PoolFigures) -> PoolLoad:
    """The load of a pool's replicas. Between steps a replica is idle, with nothing waiting or held."""
    fine = axis.finer(PARTS)
    room = pool.kv.blocks_per_replica
    sums, peak, count = np.zeros((5, fine.bins)), np.zeros(axis.bins), 0
    only = range(pool.first_replica, pool.first_replica + pool.replicas)
    for steps in in_parts(result.step_tables(only), _CHUNK):
        start, end = steps["start"], steps["end"]
        count += len(start)
        members = steps["n_decode"] + steps["prefill_requests"]
        used = 1 - steps["free_blocks"] / room if room else np.zeros(len(start))
        sums += integrals(fine, start, end, np.ones(len(start)), steps["waiting"], steps["running"], members, used)
        raise_peaks(peak, axis, start, end, used)
    return PoolLoad(axis, pool.replicas, count, sums, peak, room > 0)
