"""A quantity that follows its measurements: slowly while they agree with it, fast once they have clearly changed."""

from __future__ import annotations

from dataclasses import dataclass

_SLOW, _FAST = 0.1, 0.8  # shares that a new measurement counts for, as Libra has them
_SIGMAS = 3.0


@dataclass(slots=True)
class Learnt:
    """An exponential mean with its variance. A first guess has none, so the first measurement all but replaces it."""

    mean: float
    variance: float = 0.0

    def take(self, value: float) -> None:
        """Follow a measurement."""
        surprise = value - self.mean
        rate = _FAST if surprise * surprise > _SIGMAS**2 * self.variance else _SLOW
        self.mean += rate * surprise
        self.variance = (1 - rate) * (self.variance + rate * surprise * surprise)
