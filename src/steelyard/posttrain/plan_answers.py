"""Answers the questions of a planner by simulating recent batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from steelyard.balance.plan import Measured, Plan
from steelyard.balance.plan.libra import means
from steelyard.balance.plan.questions import Columns, Question, TrainSeconds
from steelyard.posttrain.batches import Batch
from steelyard.posttrain.plan_simulator import CONFIRMED, LEARNT_TRAJECTORIES, SIMULATED, PlanSimulator

SwitchSeconds = Callable[[Plan], float]
"""Seconds of a change to a plan, until all GPUs are in use again."""


class PlanAnswering:
    """The batches that a planner looks at, and answers about them."""

    def __init__(self, simulator: PlanSimulator, switch: SwitchSeconds) -> None:
        self._simulator, self._switch = simulator, switch
        self._planner = simulator.setup.scenario.planner
        self._recent: Sequence[Batch] = ()  # newest first
        self._tried_on: Sequence[Batch] = ()  # batches that plans are simulated on
        self._looked_at: list[Measured] = []  # batches that the planner's model is applied to

    @property
    def columns(self) -> tuple[Columns, ...]:
        """The batches that the planner's model is applied to, for the log."""
        return tuple(Columns.of(each) for each in self._looked_at)

    @property
    def seen(self) -> int:
        """Trajectories in recent batches."""
        return sum(map(len, self._recent))

    def look(self, batches: Sequence[Batch], newest: Measured, coming: Sequence[Batch] = ()) -> None:
        """Set the batches that have ended. ``coming`` are those of the next steps, which only the oracle knows."""
        self._recent = self._simulator.alike(batches)
        if coming:
            self._tried_on = coming
            self._looked_at = [self._simulator.measured(coming[0]), newest]
        else:
            self._tried_on = self._recent
            self._looked_at = [newest, *(self._longest() if self._planner == "simulated" else [])]
        self._simulator.forget_all_but([*batches, *self._tried_on])

    def answer(self, question: Question) -> float:
        """Seconds that a question asks for."""
        simulator, batches = self._simulator, self._tried_on
        if isinstance(question, TrainSeconds):
            measured = self._looked_at[question.batch]
            lengths = means(measured) if question.mean else measured.context
            return simulator.training.seconds(question.option, lengths)
        plan = Plan(question.option, question.buckets, 0.0, 0.0, 0.0)
        match question.figure:
            case "sync":
                return simulator.training.sync(question.option, question.buckets)
            case "least":
                return simulator.least_seconds(plan, batches)
            case "rollout":
                return simulator.rolled_out(plan, batches[0], self._learnt_batch())
            case "step":
                return simulator.step_seconds(plan, batches, self._learnt_batch(), SIMULATED)
            case "longer step":
                return simulator.step_seconds(plan, batches, self._learnt_batch(), CONFIRMED)
            case "switch":
                return self._switch(plan)

    def _learnt_batch(self) -> Batch:
        return self._recent[0][:LEARNT_TRAJECTORIES]

    def _longest(self) -> list[Measured]:
        """The batch with the longest trajectory, among those before the newest."""
        others = [self._simulator.measured(batch) for batch in self._recent[1:]]
        return [max(others, key=lambda each: int(each.generated.max()))] if others else []
