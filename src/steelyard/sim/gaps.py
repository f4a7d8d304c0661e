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
        """The gap at each percentile: the smallest one that is at least as large as this share of all gaps.

        Sorting all gaps would cost more than the simulation, so only the bins that hold an answer are sorted.
        """
        low = min(float(seconds.min()) for seconds, _ in self.parts)
        if low == self.longest:
            return [low for _ in percents]
        bins = min(_MOST_BINS, max(_FEWEST_BINS, sum(len(seconds) for seconds, _ in self.parts) // 8))
        scale = bins / (self.longest - low)
        places = [((seconds - low) * scale).astype(np.int32) for seconds, _ in self.parts]
        held = np.zeros(bins + 1)
        for place, (_, count) in zip(places, self.parts, strict=True):
            held += np.bincount(place, weights=count, minlength=bins + 1)
        upto = np.cumsum(held)
        targets = [percent / 100 * self.total for percent in percents]
        return [
            self._within(places, here, target - (upto[here - 1] if here else 0.0))
            for here, target in zip(np.searchsorted(upto, targets).tolist(), targets, strict=True)
        ]

    def _within(self, places: list[NDArray[np.int32]], here: int, target: float) -> float:
        """The gap in one bin at which the running count reaches the target."""
        inside = [place == here for place in places]
        seconds = np.concatenate([part[0][at] for part, at in zip(self.parts, inside, strict=True)])
        count = np.concatenate([part[1][at] for part, at in zip(self.parts, inside, strict=True)])
        order = np.argsort(seconds)
        return float(seconds[order[np.searchsorted(np.cumsum(count[order]), target)]])

    def rising(self) -> tuple[Floats, Ints]:
        """Gaps and counts of all engines, sorted by gap."""
        if not self.parts:
            return np.empty(0), np.empty(0, dtype=np.int64)
        seconds = np.concatenate([part[0] for part in self.parts])
        order = np.argsort(seconds)
        return seconds[order], np.concatenate([part[1] for part in self.parts])[order]
