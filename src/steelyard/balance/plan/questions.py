"""The events and questions of planners: plain data for the log.

A planner knows no engine and no training job. It asks the driver how long a plan would take, and the driver simulates
or looks it up: `Simulate` lists questions, `PlansSimulated` brings the answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from steelyard.balance.encoding import ADDED_LATER
from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.world import Bucket, Plan, PlannerState, TrainOption
from steelyard.balance.pool.commands import FormPool
from steelyard.records import Ints


@dataclass(frozen=True, slots=True)
class Columns:
    """`Measured` in plain numbers."""

    generated: tuple[int, ...]
    tools: tuple[float, ...]
    turns: tuple[int, ...]
    prompt: tuple[int, ...]
    context: tuple[int, ...]
    read: tuple[int, ...]
    group: int

    @staticmethod
    def of(measured: Measured) -> Columns:
        """The same numbers."""
        return Columns(
            tuple(measured.generated.tolist()),
            tuple(measured.tools.tolist()),
            tuple(measured.turns.tolist()),
            tuple(measured.prompt.tolist()),
            tuple(measured.context.tolist()),
            tuple(measured.read.tolist()),
            measured.group,
        )

    def measured(self) -> Measured:
        """As planners take it."""
        return Measured(
            np.array(self.generated, dtype=np.int64),
            np.array(self.tools, dtype=np.float64),
            np.array(self.turns, dtype=np.int64),
            np.array(self.prompt, dtype=np.int64),
            np.array(self.context, dtype=np.int64),
            np.array(self.read, dtype=np.int64),
            self.group,
        )


@dataclass(frozen=True, slots=True)
class Pooled:
    """What a hybrid pool has made of the plan in force: the training job with its lent replicas, and the engines that
    roll out."""

    option: TrainOption
    buckets: tuple[Bucket, ...]


@dataclass(frozen=True, slots=True)
class PlanWanted:
    """A step is over: should the layout change? The planner may use ``batches``; ``newest`` is the index of the newest
    ended one. Other fields are as in `PlannerState`."""

    at: float
    step: int
    batches: tuple[Columns, ...]
    newest: int
    train: float
    rollout: float
    queued: float = 0.0
    active: float = 0.0
    rejected: int = 0
    seen: int = 0
    left: int | None = None
    took: float | None = None
    pooled: Pooled | None = field(default=None, metadata=ADDED_LATER)  # if it is not the plan itself

    def state(self, measured: Measured, plan: Plan, switches: Sequence[float]) -> PlannerState:
        """As planners take it."""
        return PlannerState(
            self.step,
            measured,
            plan,
            train=self.train,
            rollout=self.rollout,
            queued=self.queued,
            active=self.active,
            rejected=self.rejected,
            switches=tuple(switches),
            seen=self.seen,
            left=self.left,
            took=self.took,
        )


@dataclass(frozen=True, slots=True)
class TrainSeconds:
    """Asks for the seconds of a training step: a layout and the sequences of a batch, or with ``mean`` as many of their
    mean length."""

    option: TrainOption
    batch: int
    mean: bool = False


PlanFigure = Literal["sync", "least", "rollout", "step", "longer step", "switch"]
"""Figures of a plan that can be asked for, in seconds:

- sync: weight sync and, if co-located, freeing the GPUs before training;
- least: training and weight sync over recent batches, a lower bound of a step;
- rollout: a batch that is alone on the engines;
- step: a step, from a short simulation; longer step: from a longer one;
- switch: a change to this plan, until all GPUs are in use again.
"""


@dataclass(frozen=True, slots=True)
class PlanSeconds:
    """Asks for one figure of a plan."""

    figure: PlanFigure
    option: TrainOption
    buckets: tuple[Bucket, ...]


Question = TrainSeconds | PlanSeconds


@dataclass(frozen=True, slots=True)
class PlansSimulated:
    """Answers to the questions of one `Simulate`, in their order, in seconds."""

    at: float
    ask: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PlanChanged:
    """A plan is in force. The change took ``seconds``."""

    at: float
    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PlanRolledBack:
    """A change of plan could not be carried out. The plan before it is in force again."""

    at: float
    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Simulate:
    """Answer these questions, with the batches of the last `PlanWanted`."""

    ask: int
    questions: tuple[Question, ...]


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """After a step, change from the plan in force to another. Reported as `PlanChanged` or `PlanRolledBack`."""

    step: int
    now: Plan
    plan: Plan


PlanEvent = PlanWanted | PlansSimulated | PlanChanged | PlanRolledBack
PlanCommand = Simulate | ChangePlan | FormPool


class Unanswered(Exception):
    """A planner needs answers that it does not have yet."""

    def __init__(self, questions: tuple[Question, ...]) -> None:
        super().__init__(questions)
        self.questions = questions


class PlanAnswers:
    """Stands in for the driver while a planner decides. Raises `Unanswered` for unknown answers."""

    def __init__(self, options: Sequence[TrainOption]) -> None:
        self._options = options
        self._known: dict[Question, float] = {}
        self._batches: list[Measured] = []

    def begin(self, batches: list[Measured]) -> None:
        """Start with new batches. Earlier answers are dropped."""
        self._known.clear()
        self._batches = batches

    def learn(self, questions: Sequence[Question], seconds: Sequence[float]) -> None:
        """Add the driver's answers."""
        self._known.update(zip(questions, seconds, strict=True))

    def train(self, option: TrainOption, lengths: Ints) -> float:
        """All layouts with the same number of GPUs are asked for together, since a search compares them."""
        batch, mean = self._batch_of(lengths)
        question = TrainSeconds(option, batch, mean)
        if question not in self._known:
            longest = int(lengths.max())
            alike = [each for each in self._options if each.gpus == option.gpus and each.budget >= longest]
            asked = dict.fromkeys([question, *(TrainSeconds(each, batch, mean) for each in alike)])
            raise Unanswered(tuple(each for each in asked if each not in self._known))
        return self._known[question]

    def sync(self, option: TrainOption, buckets: Sequence[Bucket]) -> float:
        return self._answer(PlanSeconds("sync", option, tuple(buckets)))

    def step(self, plan: Plan, _: PlannerState) -> float:
        return self._answer(PlanSeconds("step", plan.training, plan.buckets))

    def longer_step(self, plan: Plan, _: PlannerState) -> float:
        return self._answer(PlanSeconds("longer step", plan.training, plan.buckets))

    def rollout(self, plan: Plan, _: PlannerState) -> float:
        return self._answer(PlanSeconds("rollout", plan.training, plan.buckets))

    def least(self, plan: Plan, _: PlannerState) -> float:
        return self._answer(PlanSeconds("least", plan.training, plan.buckets))

    def switch(self, plan: Plan, _: PlannerState) -> float | None:
        return self._answer(PlanSeconds("switch", plan.training, plan.buckets))

    def look(self, _: PlannerState) -> Sequence[Measured]:
        """The batches that the planner's model is applied to."""
        return self._batches

    def _answer(self, question: Question) -> float:
        if question not in self._known:
            raise Unanswered((question,))
        return self._known[question]

    def _batch_of(self, lengths: Ints) -> tuple[int, bool]:
        for place, batch in enumerate(self._batches):
            if batch.context is lengths:
                return place, False
        for place, batch in enumerate(self._batches):
            if len(batch) == len(lengths) and lengths[0] == round(float(batch.context.mean())):
                return place, True
        raise AssertionError("lengths of no batch at hand")
