"""Predictive scaling: the idea of NVIDIA Dynamo's planner, for replicas that prefill and decode.

Every interval, three series are continued by one step: requests, mean prompt and mean output. A profile of the engine
says how many such requests per second a replica serves within the limits. The rest is a division.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Literal, Protocol

from steelyard.balance.autoscale import PoolView
from steelyard.balance.scaling.forecast import constant, local_trend, moving_mean, seasonal
from steelyard.balance.scaling.history import HistoryRule, TrafficHistory

Predictor = Literal["constant", "mean", "trend", "seasonal"]
_DAY = 86_400.0


class ReplicaProfile(Protocol):
    """What a replica can do."""

    def capacity(self, prompt: float, output: float, share: float) -> float:
        """Requests per second of these mean lengths that a replica serves with all mean latencies within ``share`` of
        their limits."""
        ...


@dataclass(frozen=True)
class PredictiveSettings:
    """What a user sets."""

    interval: float = 180.0  # seconds between two decisions
    predictor: Predictor = "constant"
    share: float = 1.0  # of the limits, at which the planner aims


@dataclass
class Predictive(HistoryRule):
    """As many replicas as the predicted requests need by the profile."""

    settings: PredictiveSettings
    profile: ReplicaProfile
    history: TrafficHistory = field(default_factory=TrafficHistory)
    _series: tuple[list[float], list[float], list[float]] = field(default_factory=lambda: ([], [], []))

    def __post_init__(self) -> None:
        self.awaits_first_tokens = False

    def wanted(self, pool: PoolView) -> int:
        requests = self.history.between(pool.now - self.settings.interval, pool.now)
        outputs = [each.output for each in requests if each.output is not None]
        lengths = [each.prompt - each.cached for each in requests]
        if not outputs:  # nothing to divide by
            return pool.replicas
        values = (len(requests), sum(lengths) / len(lengths), sum(outputs) / len(outputs))
        for series, value in zip(self._series, values, strict=True):
            series.append(float(value))
        count, prompt, output = (self._next(series) for series in self._series)
        capacity = self.profile.capacity(prompt, output, self.settings.share)
        return ceil(count / self.settings.interval / capacity)

    def _next(self, series: list[float]) -> float:
        match self.settings.predictor:
            case "constant":
                return constant(series)
            case "mean":
                return moving_mean(series)
            case "trend":
                return local_trend(series)
            case "seasonal":
                return seasonal(series, max(1, round(_DAY / self.settings.interval)))
