"""A mean that follows measurements: slowly while they agree with it, fast once they have clearly changed."""

from __future__ import annotations

from dataclasses import dataclass

_SLOW, _FAST = 0.1, 0.8  # weights of a new measurement, from Libra (arXiv 2606.03077)
_SIGMAS = 3.0  # deviations beyond which a measurement is a change, also from Libra

SWITCH_SECONDS = 15.0
"""A change of roles before any was measured: what Libra's planner counts for a switch (arXiv 2606.03077). The first
measurement nearly replaces it."""


@dataclass(slots=True)
class Learnt:
    """An exponential mean with its variance. A first guess has none, so the first measurement nearly replaces it."""

    mean: float
    variance: float = 0.0

    def take(self, value: float) -> None:
        """Follow a measurement."""
        surprise = value - self.mean
        rate = _FAST if surprise * surprise > _SIGMAS**2 * self.variance else _SLOW
        self.mean += rate * surprise
        self.variance = (1 - rate) * (self.variance + rate * surprise * surprise)
