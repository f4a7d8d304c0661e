"""What a policy that knows the future would do: the fewest replicas for each minute, started in time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from steelyard.scenario.slo import RunLimit
from steelyard.search.advise.judge import Column, ServedTraffic, Steps

_INTERVAL = 60.0  # seconds
_MOST_INTERVALS = 100_000  # beyond which they are longer


def oracle_schedule(fixed: Mapping[int, ServedTraffic], limits: list[RunLimit], end: float, startup: float) -> Steps:
    """(second, replicas): for each minute the fewest with which a fixed fleet of that size keeps the limits in it.

    Replicas are asked for ``startup`` before the minute that needs them, and given back at its end.
    """
    interval = max(_INTERVAL, end / _MOST_INTERVALS)
    minutes = max(1, int(np.ceil(end / interval)))
    needed = np.full(minutes, max(fixed))
    for size in sorted(fixed, reverse=True):
        good = _good(fixed[size], limits, minutes, interval)
        needed = np.where(good & (needed == size + 1) | good & (size == max(fixed)), size, needed)
    ahead = int(np.ceil(startup / interval))
    held = [int(needed[minute : minute + ahead + 1].max()) for minute in range(minutes)]
    found: list[tuple[float, int]] = []
    for minute, size in enumerate(held):
        if not found or found[-1][1] != size:
            found.append((minute * interval, size))
    return tuple(found)


def _good(run: ServedTraffic, limits: list[RunLimit], minutes: int, interval: float) -> Column:
    """By minute: whether no limit is exceeded by more of its requests than it allows."""
    requests = run.requests
    arrived = np.isfinite(requests["arrival"])
    minute = np.minimum((requests["arrival"][arrived] / interval).astype(np.int64), minutes - 1)
    came = np.bincount(minute, minlength=minutes)
    good = np.ones(minutes, dtype=bool)
    for limit in limits:
        over = (requests["status"] != "finished") | (requests[limit.metric] > limit.seconds)
        late = np.bincount(minute, weights=over[arrived], minlength=minutes)
        good &= late <= limit.may_miss * came
    return good
