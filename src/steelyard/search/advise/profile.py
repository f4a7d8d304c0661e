"""The engine's profile for predictive scaling: requests per second that a replica serves within limits, by lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import floor, log2

import numpy as np

from steelyard.sim import FleetSetup, simulate
from steelyard.workload.columns import plain

_PER_OCTAVE = 2  # grid points of a length
_REQUESTS = 200  # of a benchmark; the second half is measured
_SLOWEST, _FACTOR, _RATES = 0.005, 1.12, 110  # rates tried: up to some 1,300 requests per second


@dataclass
class SimulatedProfile:
    """Benchmarks of one replica with equal requests at a constant rate, on a grid of lengths. Made when needed."""

    setup: FleetSetup  # of one replica
    limits: Mapping[str, float]  # seconds, by metric
    _measured: dict[tuple[int, int, int], dict[str, float]] = field(default_factory=dict)

    def capacity(self, prompt: float, output: float, share: float) -> float:
        """Requests per second with all mean latencies within this share of their limits, between grid points."""
        (low_p, part_p), (low_o, part_o) = _place(prompt), _place(output)
        corners = {(p, o): log2(self._at(low_p + p, low_o + o, share)) for p in (0, 1) for o in (0, 1)}
        near, far = ((1 - part_o) * corners[p, 0] + part_o * corners[p, 1] for p in (0, 1))
        return float(2 ** ((1 - part_p) * near + part_p * far))

    def _at(self, prompt: int, output: int, share: float) -> float:
        """The highest rate of a grid point that keeps to the limits; the slowest if none does."""
        low, high = 0, _RATES
        while high - low > 1:
            middle = (low + high) // 2
            means = self._means(prompt, output, middle)
            if all(means[metric] <= share * limit for metric, limit in self.limits.items()):
                low = middle
            else:
                high = middle
        return _SLOWEST * _FACTOR**low

    def _means(self, prompt: int, output: int, rate: int) -> dict[str, float]:
        key = prompt, output, rate
        if key not in self._measured:
            at = np.arange(_REQUESTS) / (_SLOWEST * _FACTOR**rate)
            longest = self.setup.pools[0].limits.max_model_len
            tokens_out = min(max(1, round(2 ** (output / _PER_OCTAVE))), longest // 2)
            tokens_in = min(max(1, round(2 ** (prompt / _PER_OCTAVE))), longest - tokens_out)
            lengths = [np.full(_REQUESTS, tokens, dtype=np.int64) for tokens in (tokens_in, tokens_out)]
            found = simulate(self.setup, plain(at, *lengths), keep=["requests"]).requests
            half = slice(_REQUESTS // 2, None)
            self._measured[key] = {
                metric: float(np.nan_to_num(found[metric][half], nan=0.0).mean()) for metric in self.limits
            }
        return self._measured[key]


def _place(tokens: float) -> tuple[int, float]:
    """The grid point below a length, and how far it is to the next."""
    place = _PER_OCTAVE * log2(max(tokens, 1.0))
    return floor(place), place - floor(place)
