"""Arrival times: a stream of unit-rate gaps, scaled to seconds."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from steelyard.errors import UserError
from steelyard.records import Floats
from steelyard.scenario import (
    BurstArrivals,
    ConstantArrivals,
    GammaArrivals,
    PoissonArrivals,
    VaryingArrivals,
    Wave,
)
from steelyard.scenario.numbers import MOST_REQUESTS

OpenArrivals = PoissonArrivals | GammaArrivals | ConstantArrivals | BurstArrivals | VaryingArrivals

_BRACKETS = 2**16  # of a wave's period, in which bisection starts; together 1e-12 of a period
_HALVINGS = 24  # bisection steps of a wave's period


def arrival_times(
    spec: OpenArrivals, share: float, n: int | None, duration: float | None, rng: np.random.Generator
) -> Floats:
    """Non-decreasing seconds: ``n`` of them, or those up to ``duration``, or whichever ends first.

    ``share`` scales the rate. With the cumulative rate L(t), the i-th arrival is where L reaches the i-th point of a
    unit-rate stream. So a seed gives one stream at any rate.
    """
    match spec:
        case BurstArrivals():
            assert n is not None
            return np.full(n, spec.at)
        case ConstantArrivals():
            rate = spec.rate * share
            most = [] if duration is None else [math.floor(duration * rate) + 1]
            return np.arange(min([*most, *([] if n is None else [n])])) / rate
        case PoissonArrivals():
            return _until(lambda size: rng.standard_exponential(size), _steady(spec.rate * share), n, duration)
        case GammaArrivals():
            shape = spec.cv**-2
            return _until(lambda size: rng.standard_gamma(shape, size) / shape, _steady(spec.rate * share), n, duration)
        case VaryingArrivals():
            profile = spec.profile
            clock = _wave(profile, share) if isinstance(profile, Wave) else _lines(profile, share)
            return _until(lambda size: rng.standard_exponential(size), clock, n, duration)


Clock = Callable[[Floats], Floats]  # expected arrivals so far -> second


def _until(gaps: Callable[[int], Floats], clock: Clock, n: int | None, duration: float | None) -> Floats:
    """Arrivals until there are ``n``, or ``duration`` is over, or the rate stays zero."""
    if n is not None:
        times = clock(np.cumsum(gaps(n)))
        return times[times <= duration] if duration is not None else times[np.isfinite(times)]
    assert duration is not None
    drawn = gaps(1024)
    while True:
        times = clock(np.cumsum(drawn))
        if times[-1] > duration:
            return times[times <= duration]
        if len(drawn) > MOST_REQUESTS:
            raise UserError(f"workload.duration: more than {MOST_REQUESTS:,} requests arrive; give a shorter one")
        drawn = np.concatenate([drawn, gaps(len(drawn))])


def _steady(rate: float) -> Clock:
    return lambda work: work / rate


def _lines(points: tuple[tuple[float, float], ...], share: float) -> Clock:
    """A rate that is linear between points, and constant before the first and after the last."""
    seconds = np.array([0.0] * (points[0][0] > 0) + [t for t, _ in points])
    rates = np.array([points[0][1]] * (points[0][0] > 0) + [r for _, r in points]) * share
    widths = np.diff(seconds)
    reached = np.concatenate([[0.0], np.cumsum(widths * (rates[1:] + rates[:-1]) / 2)])
    slopes = np.concatenate([np.diff(rates) / widths, [0.0]])

    def clock(work: Floats) -> Floats:
        piece = np.maximum(np.searchsorted(reached, work, side="left") - 1, 0)
        todo, rate, slope = work - reached[piece], rates[piece], slopes[piece]
        # solve rate * x + slope * x^2 / 2 = todo, in the form that is stable for slopes near zero
        root = np.sqrt(np.maximum(rate * rate + 2 * slope * todo, 0.0))
        with np.errstate(divide="ignore"):
            return np.asarray(seconds[piece] + 2 * todo / (rate + root))

    return clock


def _wave(wave: Wave, share: float) -> Clock:
    """A sinusoidal rate; its integral is inverted by bisection within one period."""
    mean, swing, period = wave.mean * share, wave.amplitude * share, wave.period

    def integral(t: Floats) -> Floats:
        return mean * t + swing * period / (2 * math.pi) * (1 - np.cos(2 * math.pi * t / period))

    grid = np.linspace(0.0, period, _BRACKETS + 1)
    reached = integral(grid)

    def clock(work: Floats) -> Floats:
        periods, rest = np.divmod(work, mean * period)
        piece = np.clip(np.searchsorted(reached, rest, side="right") - 1, 0, _BRACKETS - 1)
        low, high = grid[piece], grid[piece + 1]
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            early = integral(middle) < rest
            low, high = np.where(early, middle, low), np.where(early, high, middle)
        return np.asarray(periods * period + (low + high) / 2)

    return clock
