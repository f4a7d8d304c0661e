"""Routers of rollouts: how a trajectory's next turn finds its replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from steelyard.balance.route.draws import HashedPairs
from steelyard.balance.route.plain import LeastOutstanding, PowerOfTwo, RoundRobin, Sticky
from steelyard.balance.route.rollout.cmlfq import QUEUE_CAP, CMlfq
from steelyard.balance.route.rollout.cost_aware import CostAware
from steelyard.balance.route.rollout.heddle import Heddle
from steelyard.balance.route.rollout.plain import GroupPrefixAware, RequestTurns
from steelyard.balance.route.rollout.protocol import TurnChoice, TurnRouter
from steelyard.balance.route.rollout.ranked import FewestLeftFirst, LeastAttained
from steelyard.balance.route.speed import Speeds
from steelyard.errors import UserError, did_you_mean

__all__ = ["DEFAULT", "ORACLES", "QUEUE_CAP", "ROLLOUT_ROUTERS", "TurnChoice", "TurnRouter", "rollout_router"]

DEFAULT = "cost-aware"
ORACLES = frozenset({"shortest-first"})  # to be given an estimator that knows the answer
ROLLOUT_ROUTERS = (
    *("round-robin", "least-outstanding", "sticky", "prefix-aware", "power-of-two"),
    *("shortest-first", "length-predicted", "least-attained", "c-mlfq", "heddle", DEFAULT),
)


def rollout_router(
    name: str = DEFAULT,
    *,
    speeds: Speeds | None = None,
    caps: Mapping[int, int] | None = None,
    queue_cap: int = QUEUE_CAP,
    seed: int = 0,
) -> TurnRouter:
    """The router of this name. ``speeds`` is for cost-aware; ``caps`` (tokens by TP degree) and ``queue_cap`` (turns on
    a replica) are for C-MLFQ as published."""
    makers: dict[str, Callable[[], TurnRouter]] = {
        "round-robin": lambda: RequestTurns(RoundRobin()),
        "least-outstanding": lambda: RequestTurns(LeastOutstanding()),
        "sticky": lambda: RequestTurns(Sticky(LeastOutstanding())),
        "prefix-aware": lambda: RequestTurns(GroupPrefixAware()),
        "power-of-two": lambda: RequestTurns(PowerOfTwo(HashedPairs(seed))),
        "shortest-first": FewestLeftFirst,
        "length-predicted": FewestLeftFirst,
        "least-attained": LeastAttained,
        "c-mlfq": lambda: CMlfq(caps, queue_cap),
        "heddle": Heddle,
        "cost-aware": lambda: _cost_aware(speeds),
    }
    if name not in makers:
        raise UserError(f"router: {name!r} is not one of them; {did_you_mean(name, makers)}")
    return makers[name]()


def _cost_aware(speeds: Speeds | None) -> CostAware:
    if not speeds:
        raise UserError("router: cost-aware needs speeds, a BucketSpeed for every tensor-parallel degree")
    return CostAware(speeds)
