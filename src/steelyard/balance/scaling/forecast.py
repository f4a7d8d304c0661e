"""Forecasts of arrivals, from counts of the past."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, sqrt
from statistics import NormalDist

_ENOUGH = 12  # past errors, from which on their quantile counts; before, that of a Poisson process
MOST_ERRORS = 360  # of the past that count: an hour of buckets


def upper_rate(counts: Sequence[int], level: int, horizon: int, quantile: float, bucket: float) -> float:
    """The rate that the mean of the next ``horizon`` buckets stays below with this chance, per second.

    The forecast is the mean of the last ``level`` buckets. It is raised by the quantile of what such forecasts were
    wrong by in the past, as a factor, so steady traffic gets a small margin and bursty or rising traffic a large one.
    It is not raised above what has ever come in as long a time.
    """
    if not counts:
        return 0.0
    level = min(level, len(counts))
    recent = sum(counts[-level:])
    ratios = past_errors(counts, level, horizon)
    if len(ratios) >= _ENOUGH:
        ordered = sorted(ratios)
        factor = ordered[min(len(ordered) - 1, ceil(quantile * len(ordered)) - 1)]
    else:
        factor = 1 + NormalDist().inv_cdf(quantile) / sqrt(max(recent, 1))
    forecast = (recent + 0.5) / level
    return min(max(0.0, factor) * forecast, max(forecast, busiest(counts, horizon))) / bucket


def busiest(counts: Sequence[int], horizon: int) -> float:
    """The highest mean of ``horizon`` buckets in a row; no bound if there are not as many."""
    total = sum(counts[:horizon])
    most = total
    for i in range(horizon, len(counts)):
        total += counts[i] - counts[i - horizon]
        most = max(most, total)
    return most / horizon if len(counts) >= horizon else inf


def past_errors(counts: Sequence[int], level: int, horizon: int) -> list[float]:
    """Actual over forecast arrivals, for each moment of the past at which both are known."""
    sums = [0]
    for count in counts[-(MOST_ERRORS + level + horizon) :]:
        sums.append(sums[-1] + count)
    found = []
    for now in range(level, len(sums) - horizon):
        forecast = (sums[now] - sums[now - level] + 0.5) / level
        found.append((sums[now + horizon] - sums[now] + 0.5) / horizon / forecast)
    return found


def constant(values: Sequence[float]) -> float:
    """The last value, again."""
    return values[-1]


def moving_mean(values: Sequence[float], window: int = 5) -> float:
    """The mean of the last values."""
    last = values[-window:]
    return sum(last) / len(last)


def local_trend(
    values: Sequence[float], level_noise: float = 1.0, trend_noise: float = 0.1, noise: float = 10.0
) -> float:
    """The next value by a Kalman filter whose state is a level and a trend. Never below 0."""
    level, trend = values[0], 0.0
    a, b, c = noise, 0.0, noise  # covariances: of the level, of both, of the trend
    for value in values[1:]:
        level, a, b, c = level + trend, a + 2 * b + c + level_noise, b + c, c + trend_noise
        gain, gain_trend = a / (a + noise), b / (a + noise)
        error = value - level
        level, trend = level + gain * error, trend + gain_trend * error
        a, b, c = (1 - gain) * a, (1 - gain) * b, c - gain_trend * b
    return max(0.0, level + trend)


def seasonal(values: Sequence[float], season: int) -> float:
    """The value one season before the next, scaled by how the recent ones compare; the last value in the first one."""
    if len(values) <= season:
        return values[-1]
    recent, before = moving_mean(values), moving_mean(values[: len(values) - season])
    return values[len(values) - season] * (recent / before if before > 0 else 1.0)
