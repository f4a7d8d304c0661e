"""How many replicas a pool should have. The driver tells the time and what requests took."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Protocol

import numpy as np


class ScalingRule(Protocol):
    """Says how many replicas a pool should have, whatever its limits."""

    def wanted(self, now: float, replicas: int, unfinished: int) -> int:
        """Replicas wanted, given those that are up or starting and the unfinished requests on them."""
        ...


@dataclass(frozen=True)
class ByQueue:
    """As many replicas as it takes for each to have ``target`` unfinished requests, queued or running."""

    target: float

    def wanted(self, now: float, replicas: int, unfinished: int) -> int:
        return ceil(unfinished / self.target)


@dataclass
class BySlo:
    """More replicas if a percentile of recent figures is over its limit, fewer if all are far below theirs."""

    limits: dict[str, float]  # seconds, by metric
    window: float
    percentile: float
    slack: float  # share of a limit below which a figure is far below it
    step: int
    _seen: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)

    def note(self, metric: str, at: float, seconds: float) -> None:
        """A request's figure, known at ``at``."""
        self._seen.setdefault(metric, deque()).append((at, seconds))

    def wanted(self, now: float, replicas: int, unfinished: int) -> int:
        shares = [self._share(metric, now) for metric in self.limits]
        known = [share for share in shares if share is not None]
        if not known:  # no request, or none that has got its figure yet
            return replicas + (self.step if unfinished else -self.step)
        if max(known) > 1:
            return replicas + self.step
        return replicas - self.step if max(known) < self.slack else replicas

    def _share(self, metric: str, now: float) -> float | None:
        seen = self._seen.get(metric)
        while seen and seen[0][0] < now - self.window:
            seen.popleft()
        if not seen:
            return None
        return float(np.percentile([seconds for _, seconds in seen], self.percentile)) / self.limits[metric]


@dataclass
class Scaling:
    """A pool's limits, and what decides between them: a rule that is asked every so often, or a schedule."""

    least: int
    most: int
    startup: float  # seconds until a new replica serves
    rule: ScalingRule | None = None
    every: float = 5.0  # seconds between two decisions
    cooldown: float = 0.0  # seconds after a change in which there is no other
    schedule: tuple[tuple[float, int], ...] = ()  # (from when on, how many)
    _changed: float = -inf

    def wanted(self, now: float, replicas: int, unfinished: int) -> int:
        """How many replicas there should be from now on."""
        assert self.rule is not None
        wanted = self.bounded(self.rule.wanted(now, replicas, unfinished))
        if replicas >= self.least and now < self._changed + self.cooldown:
            return replicas
        if wanted != replicas:
            self._changed = now
        return wanted

    def bounded(self, wanted: int) -> int:
        """The number within the limits that is nearest to what is wanted."""
        return min(max(wanted, self.least), self.most)
