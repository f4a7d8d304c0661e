"""How long SGLang expects answers to be: a share of what they may be, which falls until it proves too low."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from steelyard.engine.request import Request

MOST_EXPECTED = 4096  # tokens of an answer that admission reckons with
RETRACT_STEPS = 20  # decode steps for which retraction makes room
_FIRST_RATIO = 0.7  # of what answers may still take, this much is expected at first
_LEAST_RATIO = 0.14  # of the first ratio
_DECAY_STEPS = 600  # from the first ratio to the least


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
    max_new_tokens: int | None = None  # what clients allow; None: exactly what they will get
    ignore_eos: bool = False  # answers are known to run to the length allowed


class Expectation:
    """What running requests will still take: ``ratio`` of what they may."""

    def __init__(self, settings: SglangSettings) -> None:
        self.known = settings.ignore_eos  # all lengths are
        self._allowed = settings.max_new_tokens or 0
        self._first = min(_FIRST_RATIO * settings.schedule_conservativeness, 1.0)
        self._least = min(self._first * _LEAST_RATIO, 1.0)
        self.ratio = self._first

    def allowed(self, r: Request) -> int:
        """Tokens that a request may have."""
        return max(self._allowed, r.output)

    def left(self, r: Request, answered: int) -> float:
        """Tokens that a request is expected to want after so many."""
        return min(self.allowed(r) - answered, MOST_EXPECTED) * (1.0 if self.known else self.ratio)

    def decoded(self) -> None:
        """A decode step has passed."""
        self.ratio = max(self.ratio - (self._first - self._least) / _DECAY_STEPS, self._least)

    def start_over(self) -> None:
        """The engine was idle."""
        self.ratio = self._first

    def retracted(self, kept: Sequence[Request]) -> None:
        """Others lost their slots: these go on, and have so much of their answers."""
        answered = sum(r.outputs for r in kept) + RETRACT_STEPS * len(kept)
        self.ratio = min(1.0, answered / (sum(self.allowed(r) for r in kept) + 1))
