"""Reactive scaling: the algorithm of Kubernetes' HorizontalPodAutoscaler, on requests per replica.

Steps, names and defaults are those of its documentation (docs/advise.md has the sources). The metric is the mean of
running and waiting requests, as engines export them. A replica that starts has no metric yet: it counts as idle where
the rest calls for more replicas, and as exactly at the target where the rest calls for fewer.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil

from steelyard.balance.autoscale import PoolView


@dataclass(frozen=True)
class HpaSettings:
    """What a user sets. All but the target have Kubernetes' defaults."""

    target: float  # requests per replica, running or waiting
    tolerance: float = 0.1  # of the ratio to the target, within which nothing changes
    down_window: float = 300.0  # seconds whose highest recommendation counts for scaling down
    up_share: float = 1.0  # of the replicas at the start of a period, which may be added in it
    up_replicas: int = 4  # that may be added in a period in any case
    period: float = 15.0  # seconds, of both limits


@dataclass
class Hpa:
    """How many replicas an autoscaler with these settings wants."""

    settings: HpaSettings
    _recommended: deque[tuple[float, int]] = field(default_factory=deque)
    _added: deque[tuple[float, int]] = field(default_factory=deque)

    def wanted(self, pool: PoolView) -> int:
        if not self._recommended:  # an autoscaler that comes to a fleet begins with what is there
            self._recommended.append((pool.now, pool.replicas))
        recommended = desired(pool, self.settings)
        self._recommended.append((pool.now, recommended))
        while self._recommended[0][0] <= pool.now - self.settings.down_window:
            self._recommended.popleft()
        now = pool.replicas
        if recommended < now:
            return min(now, max(each for _, each in self._recommended))
        return self._limited(pool, recommended)

    def _limited(self, pool: PoolView, recommended: int) -> int:
        """At most as many more as the limits of the last period leave."""
        settings, now = self.settings, pool.replicas
        while self._added and self._added[0][0] <= pool.now - settings.period:
            self._added.popleft()
        before = now - sum(each for _, each in self._added)  # at the start of the period
        most = max(ceil(before * (1 + settings.up_share)), before + settings.up_replicas)
        wanted = min(recommended, max(most, now))
        if wanted > now:
            self._added.append((pool.now, wanted - now))
        return wanted


def desired(pool: PoolView, settings: HpaSettings) -> int:
    """The replicas at which the mean would be at its target, before windows and limits."""
    load, missing = pool.unfinished - pool.leaving, len(pool.starting)
    if not pool.up:
        return pool.replicas  # no metric at all: nothing is done
    ratio = load / pool.up / settings.target
    if missing:
        idle = load if ratio > 1 else load + missing * settings.target
        again = idle / pool.replicas / settings.target
        if (ratio > 1) != (again > 1):
            return pool.replicas  # what starts may already be enough
        ratio = again
    if abs(ratio - 1) <= settings.tolerance:
        return pool.replicas
    return ceil(round(ratio * pool.replicas, 9))
