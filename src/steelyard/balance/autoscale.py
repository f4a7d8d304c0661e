"""How many replicas a pool should have. The driver tells the time and what requests took."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class PoolView:
    """What a rule sees of its pool at a decision."""

    now: float
    up: int  # replicas that take requests
    unfinished: int  # requests, queued or running, on all of its replicas
    starting: tuple[float, ...] = ()  # seconds until each of the other replicas serves
    leaving: int = 0  # those of the requests that are on replicas which take no more

    @property
    def replicas(self) -> int:
        """Replicas that are up or starting."""
        return self.up + len(self.starting)


class ScalingRule(Protocol):
    """Says how many replicas a pool should have, whatever its limits."""

    def wanted(self, pool: PoolView) -> int:
        """Replicas wanted, up or starting."""
        ...


class WatchingRule(ABC):
    """A rule that is told of each request of its pool when something happens to it, and never of what is to come."""

    awaits_first_tokens = True  # whether it needs to be told of first tokens

    @abstractmethod
    def wanted(self, pool: PoolView) -> int:
        """Replicas wanted, up or starting."""

    @abstractmethod
    def arrived(self, request: int, at: float, prompt: int) -> None:
        """A request has come, with a prompt of so many tokens. Told again if it starts over."""

    @abstractmethod
    def first_token(self, request: int, at: float, seconds: float) -> None:
        """A request has got its first token, so many seconds after it came."""

    @abstractmethod
    def ended(self, request: int, at: float, output: int, cached: int, tpot: float | None) -> None:
        """A request has ended with so many output tokens, of its prompt so many from the cache."""

    @abstractmethod
    def gave_up(self, request: int, at: float) -> None:
        """A request has ended without its answer."""


@dataclass(frozen=True)
class ByQueue:
    """As many replicas as it takes for each to have ``target`` unfinished requests, queued or running."""

    target: float

    def wanted(self, pool: PoolView) -> int:
        return ceil(pool.unfinished / self.target)


@dataclass
class BySlo(WatchingRule):
    """More replicas if a percentile of recent figures is over its limit, fewer if all are far below theirs."""

    limits: dict[str, float]  # seconds, by metric
    window: float
    percentile: float
    slack: float  # share of a limit below which a figure is far below it
    step: int
    _seen: dict[str, deque[tuple[float, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.awaits_first_tokens = "ttft" in self.limits

    def note(self, metric: str, at: float, seconds: float) -> None:
        """A request's figure, known at ``at``."""
        self._seen.setdefault(metric, deque()).append((at, seconds))

    def arrived(self, request: int, at: float, prompt: int) -> None:
        """Nothing to note yet."""

    def first_token(self, request: int, at: float, seconds: float) -> None:
        self.note("ttft", at, seconds)

    def ended(self, request: int, at: float, output: int, cached: int, tpot: float | None) -> None:
        if tpot is not None:
            self.note("tpot", at, tpot)

    def gave_up(self, request: int, at: float) -> None:
        """It has no figures."""

    def wanted(self, pool: PoolView) -> int:
        replicas = pool.replicas
        shares = [self._share(metric, pool.now) for metric in self.limits]
        known = [share for share in shares if share is not None]
        if not known:  # no request, or none that has got its figure yet
            return replicas + (self.step if pool.unfinished else -self.step)
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

    def wanted(self, pool: PoolView) -> int:
        """How many replicas there should be from now on."""
        assert self.rule is not None
        wanted = self.bounded(self.rule.wanted(pool))
        if pool.replicas >= self.least and pool.now < self._changed + self.cooldown:
            return pool.replicas
        if wanted != pool.replicas:
            self._changed = pool.now
        return wanted

    def bounded(self, wanted: int) -> int:
        """The number within the limits that is nearest to what is wanted."""
        return min(max(wanted, self.least), self.most)
