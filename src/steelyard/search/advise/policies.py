"""The settings that each policy may choose from on the part of the trace for tuning, and its rule for a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from steelyard.balance.autoscale import Scaling, ScalingRule
from steelyard.balance.scaling import Ahead, AheadSettings, Hpa, HpaSettings, Predictive, PredictiveSettings
from steelyard.balance.scaling.predictive import Predictor
from steelyard.search.advise.pool import AdvisedPool
from steelyard.search.advise.profile import SimulatedProfile
from steelyard.search.advise.trial import SimulatedTrial
from steelyard.sim import FleetSetup

PolicySettings = HpaSettings | PredictiveSettings | AheadSettings

_TARGETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # requests per replica
_DOWN_WINDOWS = (300.0, 60.0)  # Kubernetes' default, and the shorter one of its documentation's example
_INTERVALS = (180.0, 60.0)  # Dynamo's default, and a third of it
_SHARES = (1.0, 0.7, 0.5)  # of the limits: what a user would set lower for safety
_QUANTILES = (0.5, 0.8, 0.95)
_HOLDS = (60.0, 180.0)
_MARGINS = (0.8, 2.0)  # of the misses that the limits allow; above 1: more in a peak than in the mean
_DAY = 86_400.0


@dataclass(frozen=True)
class Bounds:
    """What all policies are held to."""

    begins: int
    least: int
    most: int
    startup: float


def candidates(policy: str, bounds: Bounds, tuning: float) -> list[PolicySettings]:
    """All settings of a policy that are tried on ``tuning`` seconds of traffic."""
    if policy == "reactive":
        return [HpaSettings(float(target), down_window=window) for window in _DOWN_WINDOWS for target in _TARGETS]
    if policy == "predictive":
        names: tuple[Predictor, ...] = ("constant", "mean", "trend", *(("seasonal",) if tuning > _DAY else ()))
        return [PredictiveSettings(every, name, share) for every in _INTERVALS for name in names for share in _SHARES]
    assert policy == "ours"
    return [
        AheadSettings(quantile, hold, startup=bounds.startup, margin=margin)
        for margin in _MARGINS
        for quantile in _QUANTILES
        for hold in _HOLDS
    ]


def described(settings: PolicySettings) -> str:
    """What was chosen, in words."""
    match settings:
        case HpaSettings():
            return f"{settings.target:g} requests per replica, down after {settings.down_window:g} s"
        case PredictiveSettings():
            return f"{settings.predictor}, every {settings.interval:g} s, at {settings.share:.0%} of the limits"
        case AheadSettings():
            return f"quantile {settings.quantile:g}, margin {settings.margin:g}, down after {settings.hold:g} s"
    assert_never(settings)


@dataclass(frozen=True)
class RuleMaker:
    """Makes new rules; profiles are kept between them."""

    bounds: Bounds
    fleet: FleetSetup  # that scales
    pool: AdvisedPool
    profile: SimulatedProfile

    @classmethod
    def of(cls, pool: AdvisedPool, bounds: Bounds) -> RuleMaker:
        """For a pool that scales within bounds."""
        fleet = pool.scaled(bounds.begins, bounds.least, bounds.most, bounds.startup)
        limits = {m: s for m, s in pool.scenario.slo.per_request().items() if m in ("ttft", "tpot", "e2e")}
        return cls(bounds, fleet, pool, SimulatedProfile(pool.fixed(1), limits))

    def scaling(self, settings: PolicySettings) -> Scaling:
        """A new rule with these settings, asked as often as it wants to be."""
        rule, every = self._rule(settings)
        return Scaling(self.bounds.least, self.bounds.most, self.bounds.startup, rule, every)

    def _rule(self, settings: PolicySettings) -> tuple[ScalingRule, float]:
        match settings:
            case HpaSettings():
                return Hpa(settings), settings.period
            case PredictiveSettings():
                return Predictive(settings, self.profile), settings.interval
            case AheadSettings():
                trial = SimulatedTrial(self.fleet, self.pool.limits)
                seed = self.pool.scenario.seed
                return Ahead(settings, trial, self.bounds.least, self.bounds.most, seed), settings.interval
        assert_never(settings)


def all_candidates(policies: tuple[str, ...], bounds: Bounds, tuning: float) -> Iterator[tuple[str, PolicySettings]]:
    """The settings of all autoscaling policies."""
    for policy in ("reactive", "predictive", "ours"):
        if policy in policies:
            yield from ((policy, each) for each in candidates(policy, bounds, tuning))
