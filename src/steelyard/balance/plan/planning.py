"""The part of the core that runs a planner after each step, and asks the driver for the answers that it needs."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace

from steelyard.balance.plan.forecast import predicted
from steelyard.balance.plan.measured import Measured
from steelyard.balance.plan.questions import (
    ChangePlan,
    PlanAnswers,
    PlanChanged,
    PlanCommand,
    PlanEvent,
    PlanRolledBack,
    PlansSimulated,
    PlanWanted,
    Question,
    Simulate,
    Unanswered,
)
from steelyard.balance.plan.world import Plan, Planner, World
from steelyard.balance.pool.commands import FormPool

_REST = 5  # steps for which nothing is planned after a change was rolled back; chosen, as in the hybrid pool


@dataclass
class Planning:
    """Runs a planner after each step.

    A planner is plain code that asks questions. If an answer is missing, it is stopped and restarted once the driver
    has sent the answer. Answers are kept; the planner's state is that before the step.
    """

    world: World
    planner: Planner
    answers: PlanAnswers
    plan: Plan  # in force, or commanded
    forms_pool: bool = False  # whether a hybrid pool lends replicas between two changes
    shared: tuple[object, ...] = ()  # caches that copies of the planner share
    _now: Plan | None = None  # the plan in force, once its stage times have been predicted
    _switches: list[float] = field(default_factory=list)  # seconds that changes have taken
    _wanted: PlanWanted | None = None
    _newest: Measured | None = None
    _ask: int = 0
    _questions: tuple[Question, ...] = ()
    _last: int = -1  # the last step after which it planned
    pending: ChangePlan | None = None  # commanded, and not carried out yet
    _rests_until: int = 0  # the first step after which it plans again, once a change was rolled back

    def accepts(self, event: PlanEvent) -> str | None:
        """Why an event does not count; None if it does."""
        match event:
            case PlanWanted():
                if event.step <= self._last:
                    return "repeated"
                return None if self.pending is None else "out of order"
            case PlansSimulated():
                return None if event.ask == self._ask and self._questions else "late"
            case PlanChanged() | PlanRolledBack():
                return None if self.pending is not None and self.pending.step == event.step else "repeated"

    def decide(self, event: PlanEvent) -> list[PlanCommand]:
        """Apply an accepted event. Returns questions, a change, or nothing."""
        match event:
            case PlanWanted() if event.step < self._rests_until:
                self._last = event.step
                return []
            case PlanWanted():
                batches = [each.measured() for each in event.batches]
                self.answers.begin(batches)
                self._wanted, self._newest, self._last = event, batches[event.newest], event.step
            case PlansSimulated():
                self.answers.learn(self._questions, event.seconds)
            case PlanChanged():
                self._switches.append(event.seconds)
                self.pending = None
                return self._forming()
            case PlanRolledBack():
                self._roll_back()
                return self._forming()
        return self._go_on()

    def _forming(self) -> list[PlanCommand]:
        """A layout is in force, of which a pool may be formed."""
        return [FormPool()] if self.forms_pool else []

    def _go_on(self) -> list[PlanCommand]:
        wanted, newest = self._wanted, self._newest
        assert wanted is not None and newest is not None, "answers come after questions"
        planner = deepcopy(self.planner, {id(each): each for each in (self.world, self.answers, *self.shared)})
        try:
            now = self._in_force(wanted, newest)
            plan = planner.plan(wanted.state(newest, now, self._switches))
        except Unanswered as missing:
            self._ask += 1
            self._questions = missing.questions
            return [Simulate(self._ask, missing.questions)]
        self.planner = planner
        self._wanted, self._newest, self._questions = None, None, ()
        if plan is None or plan.layout == now.layout:
            return []
        self.plan = self._now = plan
        self.pending = ChangePlan(wanted.step, now, plan)
        return [self.pending]

    def _in_force(self, wanted: PlanWanted, newest: Measured) -> Plan:
        """The plan in force, as a pool has changed it."""
        if wanted.pooled is None:
            self.plan = self._now = self._now or predicted(self.world, self.plan, newest)
            return self.plan
        pooled = wanted.pooled
        return predicted(self.world, replace(self.plan, training=pooled.option, buckets=pooled.buckets), newest)

    def _roll_back(self) -> None:
        assert self.pending is not None, "accepted events are about a change"
        self.plan = self._now = self.pending.now
        self._rests_until = self.pending.step + _REST
        self.pending = None
