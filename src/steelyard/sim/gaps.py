"""Gaps between output tokens (ITL): up to tens of millions of values, each with a count of token pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from steelyard.engine import EngineLog

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Places = NDArray[np.int32]  # bins
Flags = NDArray[np.bool_]

_FEWEST_BINS, _MOST_BINS = 1 << 8, 1 << 16
_AT_ONCE = 1 << 21  # gaps that are sorted together, or a bin if that has more


@dataclass(frozen=True)
class TokenGaps:
    """Per engine: seconds between two output tokens of a request, and the number of pairs with that gap."""

    parts: tuple[tuple[Floats, Ints], ...]

    @classmethod
    def of(cls, logs: Sequence[EngineLog]) -> TokenGaps:
        """All gaps of all engines that ran."""
        found = (log.gaps() for log in logs if log.ends)
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
        last = min(_MOST_BINS, max(_FEWEST_BINS, sum(len(seconds) for seconds, _ in self.parts) // 8))
        scale = last / (self.longest - low)
        places = [((seconds - low) * scale).astype(np.int32) for seconds, _ in self.parts]
        held = np.zeros(last + 1)
        for place, (_, count) in zip(places, self.parts, strict=True):
            held += np.bincount(place, weights=count, minlength=last + 1)
        upto, targets = np.cumsum(held), np.asarray(counts, dtype=np.float64)
        bins = np.searchsorted(upto, targets)
        before = np.where(bins > 0, upto[bins - 1], 0.0)
        found = np.empty(len(targets))
        for chosen in _few_at_once(bins, places, last):
            seconds, bin_of, reached = self._sorted(chosen, places)
            mine = chosen[bins]
            first = np.searchsorted(bin_of, bins[mine])
            below = np.where(first > 0, reached[first - 1], 0)
            found[mine] = seconds[np.searchsorted(reached, targets[mine] - before[mine] + below)]
        return [float(each) for each in found]

    def _sorted(self, chosen: Flags, places: Sequence[Places]) -> tuple[Floats, Places, Ints]:
        """The gaps in some bins, sorted, with the bin of each and the pairs of tokens up to it."""
        inside = [np.flatnonzero(chosen[place]) for place in places]
        seconds = np.concatenate([part[0][at] for part, at in zip(self.parts, inside, strict=True)])
        count = np.concatenate([part[1][at] for part, at in zip(self.parts, inside, strict=True)])
        bin_of = np.concatenate([place[at] for place, at in zip(places, inside, strict=True)])
        order = np.argsort(seconds)
        return seconds[order], bin_of[order], np.cumsum(count[order])

    def rising(self) -> tuple[Floats, Ints]:
        """Gaps and counts of all engines, sorted by gap."""
        if not self.parts:
            return np.empty(0), np.empty(0, dtype=np.int64)
        seconds = np.concatenate([part[0] for part in self.parts])
        order = np.argsort(seconds)
        return seconds[order], np.concatenate([part[1] for part in self.parts])[order]


def _few_at_once(bins: NDArray[np.intp], places: Sequence[Places], last: int) -> Iterator[Flags]:
    """These bins in turn, as flags by bin, as many at a time as have few gaps together: these are copied and sorted."""
    groups = [bins]
    if sum(map(len, places)) > _AT_ONCE:
        sizes = np.zeros(last + 1, dtype=np.int64)
        for place in places:
            sizes += np.bincount(place, minlength=last + 1)
        rising = np.unique(bins)
        number = np.cumsum(sizes[rising]) // _AT_ONCE
        groups = [rising[number == each] for each in np.unique(number)]
    for group in groups:
        chosen = np.zeros(last + 1, dtype=np.bool_)
        chosen[group] = True
        yield chosen
