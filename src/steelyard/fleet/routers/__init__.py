"""How a request finds its replica."""

from __future__ import annotations

from collections.abc import Callable

from steelyard.fleet.routers.cache_aware import KvAware, PrefixAware
from steelyard.fleet.routers.composed import ByLoad, ByModel, ByWeight, Part
from steelyard.fleet.routers.plain import LeastOutstanding, PowerOfTwo, Random, RoundRobin, Sticky, StickySpill
from steelyard.fleet.routers.protocol import GONE, Asked, Router, RouterSettings
from steelyard.fleet.routers.slo import SloAware

__all__ = [
    "GONE",
    "Asked",
    "ByLoad",
    "ByModel",
    "ByWeight",
    "KvAware",
    "LeastOutstanding",
    "Part",
    "PowerOfTwo",
    "PrefixAware",
    "Random",
    "RoundRobin",
    "Router",
    "RouterSettings",
    "SloAware",
    "Sticky",
    "StickySpill",
    "make_router",
]

_DEFAULTS = RouterSettings()


def make_router(name: str, replicas: int, seed: int, settings: RouterSettings = _DEFAULTS) -> Router:
    """The router a scenario names."""
    routers: dict[str, Callable[[], Router]] = {
        "round-robin": lambda: RoundRobin(replicas),
        "random": lambda: Random(replicas, seed),
        "sticky": lambda: Sticky(replicas),
        "sticky-spill": lambda: StickySpill(replicas),
        "least-outstanding": lambda: LeastOutstanding(replicas),
        "power-of-two": lambda: PowerOfTwo(replicas, seed),
        "prefix-aware": lambda: PrefixAware(replicas),
        "kv-aware": lambda: KvAware(replicas, seed, settings),
        "slo-aware": lambda: SloAware(replicas, settings),
    }
    return routers[name]()
