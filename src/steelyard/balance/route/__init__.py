"""How a trajectory's next turn finds its replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from steelyard.balance.route.cmlfq import CMlfq
from steelyard.balance.route.cost_aware import CostAware
from steelyard.balance.route.heddle import Heddle
from steelyard.balance.route.plain import LeastOutstanding, PowerOfTwo, PrefixAware, RoundRobin, Sticky
from steelyard.balance.route.protocol import Choice, Router
from steelyard.balance.route.ranked import FewestLeftFirst, LeastAttained
from steelyard.balance.route.speed import BucketSpeed, Speeds
from steelyard.errors import UserError, did_you_mean

__all__ = [
    "DEFAULT",
    "ORACLES",
    "ROUTERS",
    "BucketSpeed",
    "Choice",
    "Router",
    "Speeds",
    "make_router",
]

DEFAULT = "cost-aware"
ORACLES = frozenset({"shortest-first"})  # to be given an estimator that is told the answer
ROUTERS = (
    *("round-robin", "least-outstanding", "sticky", "prefix-aware", "power-of-two"),
    *("shortest-first", "length-predicted", "least-attained", "c-mlfq", "heddle", DEFAULT),
)


def make_router(
    name: str = DEFAULT, *, speeds: Speeds | None = None, caps: Mapping[int, int] | None = None, seed: int = 0
) -> Router:
    """The router of this name. ``speeds`` is for cost-aware, ``caps`` (tokens by TP degree) for C-MLFQ as published."""
    makers: dict[str, Callable[[], Router]] = {
        "round-robin": RoundRobin,
        "least-outstanding": LeastOutstanding,
        "sticky": Sticky,
        "prefix-aware": PrefixAware,
        "power-of-two": lambda: PowerOfTwo(seed),
        "shortest-first": FewestLeftFirst,
        "length-predicted": FewestLeftFirst,
        "least-attained": LeastAttained,
        "c-mlfq": lambda: CMlfq(caps),
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
