"""The time axis that all figures of the page share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from steelyard.sim import Result

TIME_BINS = 180


@dataclass(frozen=True)
class TimeAxis:
    """The run's time cut into equal bins."""

    start: float
    end: float
    bins: int = TIME_BINS

    @property
    def width(self) -> float:
        return (self.end - self.start) / self.bins

    def bin_of(self, times: np.ndarray) -> np.ndarray:
        position = ((times - self.start) / self.width).astype(np.int64)
        return np.clip(position, 0, self.bins - 1)


def time_axis(result: Result) -> TimeAxis | None:
    """From the first arrival to the last thing that happened; None if nothing did."""
    moments = [result.requests[name] for name in ("arrival", "finish")]
    moments += [result.steps[name] for name in ("start", "end")]
    known = [column[np.isfinite(column)] for column in moments]
    known = [column for column in known if len(column)]
    if not known:
        return None
    start, end = min(float(c.min()) for c in known), max(float(c.max()) for c in known)
    if 0 < start < 0.05 * end:
        start = 0.0  # people expect the clock to start at 0
    return TimeAxis(start, end) if end > start else None
