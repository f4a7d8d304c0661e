"""The speed of replicas of one tensor-parallel degree, as a small table from the driver."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from steelyard.errors import UserError


@dataclass(frozen=True, slots=True)
class BucketSpeed:
    """Seconds that decoding, prompts and moves take on a replica of one bucket.

    ``decode`` has pairs of running requests and seconds of a step, in rising order; linear between them and beyond the
    last. Each token of context that a step attends to adds ``read``. A move takes ``reach`` seconds, and ``move`` per
    token.
    """

    decode: tuple[tuple[int, float], ...]
    prefill: float  # per token computed
    move: float  # per token moved from another replica
    read: float = 0.0
    reach: float = 0.0

    def __post_init__(self) -> None:
        counts = [count for count, _ in self.decode]
        if not counts or counts != sorted(set(counts)) or counts[0] < 1:
            raise UserError(f"decode: running requests must rise from 1 or more (found {counts})")
        if (
            min(*(seconds for _, seconds in self.decode), self.prefill) <= 0
            or min(self.move, self.read, self.reach) < 0
        ):
            raise UserError(f"a bucket's times must be above 0, and moving and reading at least 0 (found {self})")

    def step(self, running: int, context: int) -> float:
        """Seconds of a step of ``running`` requests that attend to ``context`` tokens in all."""
        table = self.decode
        upper = min(max(bisect_right(table, running, key=_count), 1), len(table) - 1)
        if len(table) == 1 or running <= table[0][0]:
            return table[0][1] + self.read * context
        (low, less), (high, more) = table[upper - 1], table[upper]
        return less + (more - less) * (running - low) / (high - low) + self.read * context

    def bring(self, tokens: int) -> float:
        """Seconds to get a context that is cached elsewhere: moved or recomputed, whichever is faster."""
        return min(self.reach + self.move * tokens, self.prefill * tokens)

    def moves(self, tokens: int) -> bool:
        """Whether moving is faster than recomputing."""
        return self.reach + self.move * tokens < self.prefill * tokens


Speeds = Mapping[int, BucketSpeed]
"""By tensor-parallel degree."""


def _count(row: tuple[int, float]) -> int:
    return row[0]
