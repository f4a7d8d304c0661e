"""What was foretold of plans, against what steps have taken with those that were run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import fsum, inf

from steelyard.balance.plan.world import Plan, State, rounded

_COUNTS = 4  # steps: what was foretold counts as much beside those that were run


@dataclass
class Promises:
    """A few batches do not show how long the longest trajectory of another may be, so what steps took with a plan
    counts beside what was foretold of it, until trajectories have changed; plans with no more GPUs to roll out are
    taken to be as late."""

    _taken: dict[object, list[float]] = field(default_factory=dict)  # by steps of late, by plan
    _new: list[float] = field(default_factory=list)  # those of them since it was last planned
    _chosen: tuple[float, float] = (0.0, inf)  # seconds of a step with the plan in force, and with the next best
    _late: tuple[int, float] = (0, 0.0)  # GPUs that roll out now, and seconds that a step is late with them

    def take(self, state: State) -> None:
        if state.plan is not None and state.took is not None:
            self._taken.setdefault(state.plan.layout, []).append(state.took)
            self._new.append(state.took)

    def forget(self) -> None:
        """Trajectories have changed."""
        self._taken.clear()

    def broken(self, by: float) -> bool:
        """Whether steps have come to take longer than was foretold of this plan and of the next best, by a share."""
        now, other = self._chosen
        return len(self._new) >= _COUNTS and _mean_with(now, self._new) > (1 + by) * max(now, other)

    def run(self, plan: Plan) -> bool:
        """Whether steps were run with a plan."""
        return plan.layout in self._taken

    def in_force(self, plan: Plan, said: float) -> Plan:
        """The plan that steps have been run with; others are measured by how late they are."""
        now = replace(plan, step=_mean_with(said, self._taken[plan.layout]))
        self._late = now.rollout_gpus, max(0.0, now.step - said)
        return now

    def of(self, plan: Plan, said: float) -> Plan:
        """A plan that steps are said to take so long with, by what is known beside."""
        gpus, late = self._late
        if plan.layout in self._taken:
            return replace(plan, step=_mean_with(said, self._taken[plan.layout]))
        return replace(plan, step=said + late if plan.rollout_gpus <= gpus else said)

    def begin(self) -> None:
        """It is planned anew."""
        self._new.clear()
        self._late = 0, 0.0

    def chosen(self, step: float, other: float) -> None:
        """Seconds of a step with the plan that is in force from now on, and with the next best."""
        self._chosen = step, other


def _mean_with(said: float, taken: Sequence[float]) -> float:
    """Seconds of a step, by what was foretold and by what steps have taken."""
    return rounded((_COUNTS * said + fsum(taken)) / (_COUNTS + len(taken)))
