"""Routers of a serving fleet: how a request finds its replica."""

from __future__ import annotations

from collections.abc import Callable

from steelyard.balance.route.draws import SeededPairs
from steelyard.balance.route.plain import (
    LeastOutstanding,
    PowerOfTwo,
    PrefixAware,
    Random,
    RoundRobin,
    Sticky,
    StickySpill,
)
from steelyard.balance.route.protocol import Router
from steelyard.balance.route.serving.kv_aware import KvAware
from steelyard.balance.route.serving.memory import CountedLoads, SessionHomes
from steelyard.balance.route.serving.pools import ByLoad, ByModel, ByWeight, RoutedPool
from steelyard.balance.route.serving.settings import RouterSettings
from steelyard.balance.route.serving.slo_aware import SloAware

__all__ = [
    "SERVING_ROUTERS",
    "ByLoad",
    "ByModel",
    "ByWeight",
    "CountedLoads",
    "KvAware",
    "RoutedPool",
    "RouterSettings",
    "SessionHomes",
    "SloAware",
    "serving_router",
]

_DEFAULTS = RouterSettings()

MakeRouter = Callable[[int, int, RouterSettings], Router]  # of a number of replicas, a seed and settings

SERVING_ROUTERS: dict[str, MakeRouter] = {
    "round-robin": lambda replicas, seed, settings: RoundRobin(range(replicas)),
    "random": lambda replicas, seed, settings: Random(replicas, seed),
    "sticky": lambda replicas, seed, settings: SessionHomes(Sticky(RoundRobin(range(replicas)))),
    "sticky-spill": lambda replicas, seed, settings: CountedLoads(SessionHomes(StickySpill(range(replicas))), replicas),
    "least-outstanding": lambda replicas, seed, settings: CountedLoads(LeastOutstanding(range(replicas)), replicas),
    "power-of-two": lambda replicas, seed, settings: CountedLoads(PowerOfTwo(SeededPairs(replicas, seed)), replicas),
    "prefix-aware": lambda replicas, seed, settings: CountedLoads(PrefixAware(range(replicas)), replicas),
    "kv-aware": lambda replicas, seed, settings: KvAware(replicas, seed, settings),
    "slo-aware": lambda replicas, seed, settings: SloAware(replicas, settings),
}
"""By name. `RouterName` of the scenario has the same names."""


def serving_router(name: str, replicas: int, seed: int, settings: RouterSettings = _DEFAULTS) -> Router:
    """The router of this name for replicas numbered from 0, all available. It counts their unfinished requests."""
    return SERVING_ROUTERS[name](replicas, seed, settings)
