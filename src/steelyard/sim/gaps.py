"""Gaps between output tokens (ITL): up to tens of millions of values, each with a count of token pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steelyard.engine import EngineLog

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_FEWEST_BINS, _MOST_BINS = 1 << 8, 1 << 16


@dataclass(frozen=True)
class TokenGaps:
    """Per engine: seconds between two output tokens of a request, and the number of pairs with that gap."""

    parts: tuple[tuple[Floats, Ints], ...]

    @classmethod
    def of(cls, logs: Sequence[EngineLog]) -> TokenGaps:
        """All gaps of all engines that ran."""
        found = (log.gaps() for log in logs)
        return cls(tuple(part for part in found if len(part[0])))

    def with_further(self, seconds: Floats) -> TokenGaps:
        """These gaps and some more, one pair of tokens each."""
        return TokenGaps((*self.parts, (seconds, np.ones(len(seconds), dtype=np.int64)))) if len(seconds) else self

    @cached_property
    def total(self) -> int:
        """Pairs of tokens in all."""
        return sum(int(count.sum()) for _, count in self.parts)

    @cached_property
    def mean(self) -> float:
        """The average gap."""
        return sum(float((seconds * count).sum()) for seconds, count in self.parts) / self.total

    @cached_property
    def longest(self) -> float:
        """The longest gap."""
        return max(float(seconds.max()) for seconds, _ in self.parts)

    def percentiles(self, percents: Sequence[float]) -> list[float]:
        """The gap at each percentile: the smallest one that is at least as large as this share of all gaps."""
        return self.at([percent / 100 * self.total for percent in percents])

    def at(self, counts: Sequence[float] | Floats) -> list[float]:
        """For each count the smallest gap such that so many pairs of tokens have no larger one.

        Sorting all gaps would cost more than the simulation, so only the bins that hold an answer are sorted.
        """
        low = min(float(seconds.min()) for seconds, _ in self.parts)
        if low == self.longest:
            return [low for _ in counts]
        most = min(_MOST_BINS, max(_FEWEST_BINS, sum(len(seconds) for seconds, _ in self.parts) // 8))
        scale = most / (self.longest - low)
        held = np.zeros(most + 1)
        for seconds, count in self.parts:
            held += np.bincount(_places(seconds, low, scale), weights=count, minlength=most + 1)
        upto = np.cumsum(held)
        bins = np.searchsorted(upto, counts)
        before = np.where(bins > 0, upto[bins - 1], 0.0)
        wanted = np.zeros(most + 1, dtype=np.bool_)
        wanted[bins] = True
        seconds, place, reached = self._sorted_bins(wanted, low, scale)
        first = np.searchsorted(place, bins)
        below = np.where(first > 0, reached[first - 1], 0)
        return [float(seconds[i]) for i in np.searchsorted(reached, np.asarray(counts) - before + below)]

    def _sorted_bins(self, wanted: NDArray[np.bool_], low: float, scale: float) -> tuple[Floats, Ints, Ints]:
        """The gaps in some bins, sorted, with the bin of each and how many pairs of tokens come up to it."""
        found: list[tuple[Floats, Ints, Ints]] = []
        for seconds, count in self.parts:
            place = _places(seconds, low, scale)
            inside = wanted[place]
            found.append((seconds[inside], place[inside], count[inside]))
        seconds, place, count = (np.concatenate(column) for column in zip(*found, strict=True))
        order = np.argsort(seconds)
        return seconds[order], place[order], np.cumsum(count[order])

    def rising(self) -> tuple[Floats, Ints]:
        """Gaps and counts of all engines, sorted by gap."""
        if not self.parts:
            return np.empty(0), np.empty(0, dtype=np.int64)
        seconds = np.concatenate([part[0] for part in self.parts])
        order = np.argsort(seconds)
        return seconds[order], np.concatenate([part[1] for part in self.parts])[order]


def _places(seconds: Floats, low: float, scale: float) -> Ints:
    """The bin of each gap."""
    return ((seconds - low) * scale).astype(np.int64)
