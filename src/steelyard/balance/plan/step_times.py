"""Predicted step times of plans, corrected by the steps that were run with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import fsum, inf

from steelyard.balance.plan.world import Plan, PlannerState, rounded

_COUNTS = 4  # steps that a prediction counts for beside measured ones


@dataclass
class StepTimes:
    """A few simulated batches do not show how long the longest trajectory of the next may be. So measured steps of a
    plan count beside its prediction, until trajectories change; plans with no more GPUs to roll out are taken to be as
    late as the plan in force."""

    _taken: dict[object, list[float]] = field(default_factory=dict)  # seconds of steps, by layout
    _new: list[float] = field(default_factory=list)  # seconds of steps since it was last planned
    _chosen: tuple[float, float] = (0.0, inf)  # seconds of a step with the plan in force, and with the next best
    _late: tuple[int, float] = (0, 0.0)  # GPUs that roll out now, and seconds that a step is late with them

    def take(self, state: PlannerState) -> None:
        if state.plan is not None and state.took is not None:
            self._taken.setdefault(state.plan.layout, []).append(state.took)
            self._new.append(state.took)

    def forget(self) -> None:
        """Trajectories have changed."""
        self._taken.clear()

    def broken(self, by: float) -> bool:
        """Whether steps take longer, by a share, than was predicted of the plan in force and of the next best."""
        now, other = self._chosen
        return len(self._new) >= _COUNTS and _mean_with(now, self._new) > (1 + by) * max(now, other)

    def run(self, plan: Plan) -> bool:
        """Whether steps were run with a plan."""
        return plan.layout in self._taken

    def in_force(self, plan: Plan, said: float) -> Plan:
        """The plan in force, by prediction and measured steps; sets how late others are taken to be."""
        now = replace(plan, step=_mean_with(said, self._taken[plan.layout]))
        self._late = now.rollout_gpus, max(0.0, now.step - said)
        return now

    def of(self, plan: Plan, said: float) -> Plan:
        """A plan with a predicted step time, corrected by what is known."""
        gpus, late = self._late
        if plan.layout in self._taken:
            return replace(plan, step=_mean_with(said, self._taken[plan.layout]))
        return replace(plan, step=said + late if plan.rollout_gpus <= gpus else said)

    def begin(self) -> None:
        """Begin to plan again."""
        self._new.clear()
        self._late = 0, 0.0

    def chosen(self, step: float, other: float) -> None:
        """Predicted seconds of a step with the plan that is in force from now on, and with the next best."""
        self._chosen = step, other


def _mean_with(said: float, taken: Sequence[float]) -> float:
    """Seconds of a step by its prediction and by measured steps."""
    return rounded((_COUNTS * said + fsum(taken)) / (_COUNTS + len(taken)))
