"""Predicted step times of plans, corrected by the steps that were run with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import fsum, inf

from steelyard.balance.plan.world import Plan, PlannerState, rounded

_PREDICTION_WEIGHT = 4  # weight of a prediction, in measured steps


@dataclass
class StepTimes:
    """A few simulated batches do not show how long the longest trajectory of the next one may be. So the measured steps
    of a plan are averaged with its prediction until lengths change. Plans with no more rollout GPUs than the plan in
    force are assumed to be late by as much."""

    _taken: dict[object, list[float]] = field(default_factory=dict)  # seconds of steps, by layout
    _new: list[float] = field(default_factory=list)  # seconds of steps since the last planning
    _chosen: tuple[float, float] = (0.0, inf)  # seconds of a step with the plan in force, and with the next best
    _late: tuple[int, float] = (0, 0.0)  # rollout GPUs of the plan in force, and seconds that its steps are late

    def take(self, state: PlannerState) -> None:
        if state.plan is not None and state.took is not None:
            self._taken.setdefault(state.plan.layout, []).append(state.took)
            self._new.append(state.took)

    def forget(self) -> None:
        """Drop measured steps: lengths have changed."""
        self._taken.clear()

    def exceed_predictions(self, by: float) -> bool:
        """Whether steps exceed the predictions of both the plan in force and the next best by a share."""
        now, other = self._chosen
        return len(self._new) >= _PREDICTION_WEIGHT and _mean_with(now, self._new) > (1 + by) * max(now, other)

    def has_measured(self, plan: Plan) -> bool:
        """Whether steps with a plan were measured."""
        return plan.layout in self._taken

    def in_force(self, plan: Plan, prediction: float) -> Plan:
        """The plan in force with its corrected step time. Sets how late other plans are assumed to be."""
        now = replace(plan, step=_mean_with(prediction, self._taken[plan.layout]))
        self._late = now.rollout_gpus, max(0.0, now.step - prediction)
        return now

    def of(self, plan: Plan, prediction: float) -> Plan:
        """A plan with a predicted step time, corrected by what is known."""
        gpus, late = self._late
        if plan.layout in self._taken:
            return replace(plan, step=_mean_with(prediction, self._taken[plan.layout]))
        return replace(plan, step=prediction + late if plan.rollout_gpus <= gpus else prediction)

    def begin(self) -> None:
        """Start a new planning."""
        self._new.clear()
        self._late = 0, 0.0

    def chosen(self, step: float, other: float) -> None:
        """Predicted seconds of a step with the plan that is in force from now on, and with the next best."""
        self._chosen = step, other


def _mean_with(prediction: float, taken: Sequence[float]) -> float:
    """The weighted mean of a prediction and measured steps."""
    return rounded((_PREDICTION_WEIGHT * prediction + fsum(taken)) / (_PREDICTION_WEIGHT + len(taken)))
