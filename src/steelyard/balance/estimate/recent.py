"""The last samples of a quantity, with their mean and 90th percentile."""

from __future__ import annotations

from collections import deque

from steelyard.balance.estimate.protocol import UNKNOWN, Left


class RecentSamples:
    """A window of up to ``most`` samples. Its figures are computed when asked for and kept until the next sample."""

    __slots__ = ("_left", "_samples")

    def __init__(self, most: int = 200) -> None:
        self._samples: deque[int] = deque(maxlen=most)
        self._left: Left | None = UNKNOWN

    def __len__(self) -> int:
        return len(self._samples)

    def add(self, sample: int) -> None:
        """Add a sample; the oldest leaves a full window."""
        self._samples.append(sample)
        self._left = None

    def left(self) -> Left:
        """Mean and p90: the smallest sample that at least nine in ten samples do not exceed."""
        if self._left is None:
            ordered = sorted(self._samples)
            count = len(ordered)
            self._left = Left(sum(ordered) / count, float(ordered[(9 * count + 9) // 10 - 1]))
        return self._left
