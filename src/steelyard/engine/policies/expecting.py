"""SGLang's estimate of output lengths: a share of the most allowed, which decays until it proves too low.

The constants are SGLang 0.5.23's defaults; the goldens of the tests hold decisions made with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from steelyard.engine.request import Request

MOST_EXPECTED = 4096  # output tokens that admission counts at most
RETRACT_STEPS = 20  # decode steps for which retraction frees slots
_FIRST_RATIO = 0.7  # expected share of the remaining output, at first
_LEAST_RATIO = 0.14  # of the first ratio
_DECAY_STEPS = 600  # decode steps from the first ratio to the least


@dataclass(frozen=True)
class SglangSettings:
    """What SGLang has besides the settings in `Limits`, under its names where it has one.

    `Limits.max_num_batched_tokens` is its ``chunked_prefill_size``, `Limits.max_num_seqs` its
    ``max_running_requests``, `Limits.async_scheduling` its overlap scheduling.
    """

    schedule_policy: Literal["lpm", "fcfs"] = "fcfs"
    max_prefill_tokens: int = 16384
    enable_mixed_chunk: bool = False
    schedule_conservativeness: float = 1.0
    max_new_tokens: int | None = None  # what clients allow; None: exactly the output of each request
    ignore_eos: bool = False  # outputs are known to have the length allowed


class Expectation:
    """Expected remaining output of running requests: ``ratio`` of what is allowed."""

    def __init__(self, settings: SglangSettings) -> None:
        self.known = settings.ignore_eos  # all lengths are known
        self._allowed = settings.max_new_tokens or 0
        self._first = min(_FIRST_RATIO * settings.schedule_conservativeness, 1.0)
        self._least = min(self._first * _LEAST_RATIO, 1.0)
        self.ratio = self._first

    def allowed(self, r: Request) -> int:
        """Tokens that a request may have."""
        return max(self._allowed, r.output)

    def left(self, r: Request, answered: int) -> float:
        """Tokens that a request is expected to need after ``answered``."""
        return min(self.allowed(r) - answered, MOST_EXPECTED) * (1.0 if self.known else self.ratio)

    def decoded(self) -> None:
        """Decay the ratio after a decode step."""
        self.ratio = max(self.ratio - (self._first - self._least) / _DECAY_STEPS, self._least)

    def start_over(self) -> None:
        """Reset the ratio after the engine was idle."""
        self.ratio = self._first

    def retracted(self, kept: Sequence[Request]) -> None:
        """Raise the ratio after a retraction, to what the kept requests have of their outputs."""
        answered = sum(r.outputs for r in kept) + RETRACT_STEPS * len(kept)
        self.ratio = min(1.0, answered / (sum(self.allowed(r) for r in kept) + 1))
