"""How many replicas a pool should have: decisions from what was seen, without a clock of their own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Protocol

import numpy as np


class Rule(Protocol):
    """Wants a number of replicas, whatever the limits."""

    def wanted(self, now: float, replicas: int, unfinished: int) -> int:
        """How many, where so many are there or on the way, and so many requests unfinished on them."""
        ...


@dataclass(frozen=True)
class ByQueue:
    """As many as it takes for each to have so many unfinished requests, queued or running."""

    target: float

    def wanted(self, now: float, replicas: int, unfinished: int) -> int:
        return ceil(unfinished / self.target)


@dataclass
class BySlo:
    """More where a percentile of what was seen lately is over its limit, fewer where all are far below theirs."""

    limits: dict[str, float]  # seconds, by metric
    window: float
    percentile: float
    slack: float  # share of a limit below which one is far below it
    step: int
    _seen: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)

    def note(self, metric: str, at: float, seconds: float) -> None:
        """A request's figure, known since ``at``."""
        self._seen.setdefault(metric, deque()).append((at, seconds))

    def wanted(self, now: float, replicas: int, unfinished: int) -> int:
        shares = [self._share(metric, now) for metric in self.limits]
        known = [share for share in shares if share is not None]
        if not known:  # nobody had anything to wait for, or all still wait
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
    """A pool's limits, and who decides between them: a rule every so often, or a schedule."""

    least: int
    most: int
    startup: float  # seconds until a new replica serves
    rule: Rule | None = None
    every: float = 5.0  # seconds between two looks
    cooldown: float = 0.0  # seconds after a change without another
    schedule: tuple[tuple[float, int], ...] = ()  # (from when on, how many)
    _changed: float = -inf

    def wanted(self, now: float, replicas: int, unfinished: int) -> int:
        """How many there should be from now on."""
        assert self.rule is not None
        wanted = self.bounded(self.rule.wanted(now, replicas, unfinished))
        if replicas >= self.least and now < self._changed + self.cooldown:
            return replicas
        if wanted != replicas:
            self._changed = now
        return wanted

    def bounded(self, wanted: int) -> int:
        """As near to what is wanted as the limits allow."""
        return min(max(wanted, self.least), self.most)
