"""The time axis that all charts of a run share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from steelyard.sim.result import Result

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

    def finer(self, parts: int) -> TimeAxis:
        """The same time in more bins."""
        return TimeAxis(self.start, self.end, self.bins * parts)

    def bin_of(self, times: np.ndarray) -> np.ndarray:
        position = ((times - self.start) / self.width).astype(np.int64)
        return np.clip(position, 0, self.bins - 1)


def time_axis(result: Result) -> TimeAxis | None:
    """From the first arrival to the last thing that happened; None if nothing did."""
    moments = [result.requests[name] for name in ("arrival", "finish")]
    spans = [_span(column) for column in moments]
    spans += [_span(table[name]) for table in result.step_tables() for name in ("start", "end")]
    known = [each for each in spans if each is not None]
    if not known:
        return None
    start, end = min(first for first, _ in known), max(last for _, last in known)
    if 0 < start < 0.05 * end:
        start = 0.0  # people expect the clock to start at 0
    return TimeAxis(start, end) if end > start else None


def _span(times: np.ndarray) -> tuple[float, float] | None:
    """The first and the last of some times; None if none is known."""
    known = times[np.isfinite(times)]
    return (float(known.min()), float(known.max())) if len(known) else None
