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

SERVING_ROUTERS = (
    *("round-robin", "random", "sticky", "sticky-spill", "least-outstanding"),
    *("power-of-two", "prefix-aware", "kv-aware", "slo-aware"),
)
_DEFAULTS = RouterSettings()


def serving_router(name: str, replicas: int, seed: int, settings: RouterSettings = _DEFAULTS) -> Router:
    """The router of this name for replicas numbered from 0, all available. It counts their unfinished requests."""
    numbers = range(replicas)
    routers: dict[str, Callable[[], Router]] = {
        "round-robin": lambda: RoundRobin(numbers),
        "random": lambda: Random(replicas, seed),
        "sticky": lambda: SessionHomes(Sticky(RoundRobin(numbers))),
        "sticky-spill": lambda: CountedLoads(SessionHomes(StickySpill(numbers)), replicas),
        "least-outstanding": lambda: CountedLoads(LeastOutstanding(numbers), replicas),
        "power-of-two": lambda: CountedLoads(PowerOfTwo(SeededPairs(replicas, seed)), replicas),
        "prefix-aware": lambda: CountedLoads(PrefixAware(numbers), replicas),
        "kv-aware": lambda: KvAware(replicas, seed, settings),
        "slo-aware": lambda: SloAware(replicas, settings),
    }
    return routers[name]()
