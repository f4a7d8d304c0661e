"""All events that drivers report and all commands that the core gives."""

from __future__ import annotations

from steelyard.balance.commands import RolloutCommand, RoundCommand
from steelyard.balance.events import RolloutEvent, RoundEvent
from steelyard.balance.plan.questions import PlanCommand, PlanEvent
from steelyard.balance.pool import PoolCommand, PoolDissolved, PoolEvent, PoolFormed, WakeAt

Event = RolloutEvent | RoundEvent | PoolFormed | PoolDissolved | PoolEvent | PlanEvent
Command = RolloutCommand | RoundCommand | PoolCommand | WakeAt | PlanCommand
