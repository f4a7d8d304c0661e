"""A planner first, then the pool: layouts are settled before replicas of them are lent out and back."""

from __future__ import annotations

from steelyard.posttrain.hybrid import HybridPool
from steelyard.posttrain.loop import Loop
from steelyard.posttrain.record import StepRecord
from steelyard.posttrain.replan import Replanner


class PlannedPool:
    """A loop's manager. The planner is asked until it leaves things as they are; from then on the pool moves replicas.

    A pool's replicas are of one training layout, so the two never work at the same time.
    """

    def __init__(self, loop: Loop, planner: Replanner) -> None:
        self._loop, self._planner = loop, planner
        self._pool: HybridPool | None = None

    def after(self, step: StepRecord) -> float:
        """A step is over; when the next batch may begin."""
        if self._pool is not None:
            self._planner.measure(step)
            return self._pool.after(step)
        ready = self._planner.after(step)
        if self._planner.settled:
            self._pool = self._loop.trainer.gate = HybridPool(self._loop)
        return ready
