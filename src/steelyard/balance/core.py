"""The decision core: an event in, commands out. A simulator drives it in virtual time, a live driver as things happen.

The order of its parts is fixed. An event of the rollout goes to the router first, so that a free seat is never idle
while a turn waits. Then it goes to the rounds (admission and tail policy), which begin samples and choose batches.
Events of the training job go to the rounds. Measurements of a step go to the planner, and to the hybrid pool if the
plan stays. A change of plan dissolves the pool, and another is formed of the new layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any, get_args

from steelyard.balance.events import (
    Generated,
    PartTrained,
    RolloutEvent,
    StepTrained,
    TrainerReady,
    WeightsPublished,
)
from steelyard.balance.inbox import Envelope, Inbox
from steelyard.balance.kinds import Command, Event
from steelyard.balance.placement import Placement
from steelyard.balance.plan.planning import Planning
from steelyard.balance.plan.questions import PlanEvent
from steelyard.balance.pool import HybridPool, PoolDissolved, PoolEvent, PoolFormed, PoolRules, Tick, WakeAt
from steelyard.balance.rollouts import Reason
from steelyard.balance.rounds import Rounds


class Core:
    """All decisions of a post-training run. Drivers report events in an `Envelope` and carry commands out in order.

    Unknown, late, repeated and out-of-order events change nothing. ``dropped`` counts them by reason.
    """

    def __init__(
        self,
        placement: Placement,
        rounds: Rounds,
        pool_rules: PoolRules | None = None,
        planning: Planning | None = None,
    ) -> None:
        self.placement = placement
        self.rounds = rounds
        self.planning = planning
        self.pool: HybridPool | None = None
        self._pool_rules = pool_rules
        self._pool_epoch = 0  # the last of the pools that were dissolved
        self._wake_at = inf  # when the driver was asked to send a tick
        self._inbox = Inbox()
        self.published = self.asked = self.trained = -1  # the last versions and steps that were reported
        self._part = -1
        self._dropped: Counter[str] = Counter()

    @property
    def dropped(self) -> Counter[str]:
        """Events that did not count, by reason."""
        found = self._dropped + self._inbox.dropped
        return found if self.pool is None else found + self.pool.dropped

    def decide(self, envelope: Envelope) -> list[Command]:
        """Apply an event and those that waited for it. Returns the commands that follow, in order."""
        if self._inbox.in_order(envelope):
            return self.apply(envelope.event)
        return [command for event in self._inbox.take(envelope) for command in self.apply(event)]

    def apply(self, event: Event) -> list[Command]:
        """Decide on one event, in the order of the driver's reports."""
        return _PARTS[type(event)](self, event)

    def _roll_out(self, event: RolloutEvent) -> list[Command]:
        placement = self.placement
        reason = placement.rollouts.accepts(event)
        if reason is not None:
            return self._drop(reason)
        return [*placement.decide(event), *self.rounds.decide(event)]

    def _count_tokens(self, event: Generated) -> list[Command]:
        if event.trajectory not in self.placement.rollouts.running:
            return self._drop("unknown trajectory")
        return [*self.rounds.decide(event)]

    def _publish(self, event: WeightsPublished) -> list[Command]:
        reason = _next_to(self.published, event.version)
        if reason is not None:
            return self._drop(reason)
        self.published = event.version
        return [*self.rounds.decide(event)]

    def _gather(self, event: TrainerReady) -> list[Command]:
        reason = _next_to(self.asked, event.step)
        if reason is not None:
            return self._drop(reason)
        self.asked, self._part = event.step, -1
        return [*self.rounds.decide(event)]

    def _go_on(self, event: PartTrained) -> list[Command]:
        reason = _next_to(self._part, event.part) if event.step == self.asked else _next_to(self.asked, event.step)
        if reason is not None or event.step != self.asked:
            return self._drop(reason or "out of order")
        self._part = event.part
        return [*self.rounds.decide(event)]

    def _train(self, event: StepTrained) -> list[Command]:
        reason = _next_to(self.trained, event.step)
        if reason is not None:
            return self._drop(reason)
        self.trained = event.step
        return [*self.rounds.decide(event)]

    def _form_pool(self, event: PoolFormed) -> list[Command]:
        if self._pool_rules is None or self.pool is not None:
            return self._drop("unknown pool" if self._pool_rules is None else "repeated")
        self.pool = self._pool_rules.form(event, self._pool_epoch)
        return []

    def _dissolve_pool(self, event: PoolDissolved) -> list[Command]:
        if self.pool is None:
            return self._drop("unknown pool")
        self.pool.ledger.dissolved(event.at)
        self._dropped += self.pool.dropped
        self._pool_epoch, self._wake_at = max(self._pool_epoch, self.pool.epoch), inf
        self.pool = None
        return []

    def _move(self, event: PoolEvent) -> list[Command]:
        if self.pool is None:
            return self._drop("unknown pool")
        if isinstance(event, Tick):
            if event.at < self._wake_at:
                return self._drop("repeated")
            self._wake_at = inf
        commands: list[Command] = [*self.pool.decide(event)]
        if self.pool.wake_at < self._wake_at:
            self._wake_at = self.pool.wake_at
            commands.append(WakeAt(self._wake_at))
        return commands

    def _plan(self, event: PlanEvent) -> list[Command]:
        if self.planning is None:
            return self._drop("unknown plan")
        reason = self.planning.accepts(event)
        if reason is not None:
            return self._drop(reason)
        return [*self.planning.decide(event)]

    def _drop(self, reason: str) -> list[Command]:
        self._dropped[reason] += 1
        return []


def _next_to(last: int, number: int) -> Reason | None:
    """Why a number that should be one above the last does not count; None if it does."""
    if number == last + 1:
        return None
    return "repeated" if number <= last else "out of order"


_PARTS: dict[type, Callable[[Core, Any], list[Command]]] = {
    **dict.fromkeys(get_args(RolloutEvent), Core._roll_out),
    Generated: Core._count_tokens,
    WeightsPublished: Core._publish,
    TrainerReady: Core._gather,
    PartTrained: Core._go_on,
    StepTrained: Core._train,
    PoolFormed: Core._form_pool,
    PoolDissolved: Core._dissolve_pool,
    **dict.fromkeys(get_args(PoolEvent), Core._move),
    **dict.fromkeys(get_args(PlanEvent), Core._plan),
}
"""The part of the core that each kind of event goes to."""
