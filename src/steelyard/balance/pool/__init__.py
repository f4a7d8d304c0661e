"""The elastic hybrid pool: training replicas that move between rollout and training, whole, while nobody waits."""

from steelyard.balance.pool.commands import (
    Activate,
    Drain,
    Fetch,
    Join,
    Leave,
    PoolCommand,
    Reduce,
    RollBack,
    Sync,
)
from steelyard.balance.pool.events import (
    Drained,
    Failed,
    Fetched,
    Gradient,
    JoinAccepted,
    PoolEvent,
    Serving,
    StepBegan,
    StepEnded,
    Synced,
    Tick,
)
from steelyard.balance.pool.exchange import contributions
from steelyard.balance.pool.ledger import Ledger, Reallocation
from steelyard.balance.pool.member import Member, Patience, Role, State
from steelyard.balance.pool.pool import Pool
from steelyard.balance.pool.rules import Outlook, Payoff, Proportional, Rule, Split, Thresholds, View

__all__ = [
    "Activate",
    "Drain",
    "Drained",
    "Failed",
    "Fetch",
    "Fetched",
    "Gradient",
    "Join",
    "JoinAccepted",
    "Leave",
    "Ledger",
    "Member",
    "Outlook",
    "Patience",
    "Payoff",
    "Pool",
    "PoolCommand",
    "PoolEvent",
    "Proportional",
    "Reallocation",
    "Reduce",
    "Role",
    "RollBack",
    "Rule",
    "Serving",
    "Split",
    "State",
    "StepBegan",
    "StepEnded",
    "Sync",
    "Synced",
    "Thresholds",
    "Tick",
    "View",
    "contributions",
]
