"""Reference schedulers from before paged attention: static batching, and Orca's iteration-level batching.

Both run whole prompts and reserve memory for a request's longest output before they admit it, so they never preempt.
The scenario turns chunked prefill and prefix caching off for them.
"""

from __future__ import annotations

from steelyard.engine.batch import Batch
from steelyard.engine.content import BlockNames
from steelyard.engine.limits import Limits
from steelyard.engine.request import RUNNING, Request
from steelyard.engine.scheduler import Scheduler


class Orca(Scheduler):
    """Requests join and leave between iterations; each has its memory reserved until it ends."""

    def __init__(self, limits: Limits, names: BlockNames, *, plain: bool = False) -> None:
        super().__init__(limits, names, plain=plain)
        self._promised = 0  # blocks reserved for running requests

    def _whole(self, r: Request) -> int:
        tokens = min(r.prompt + r.output - 1 + self.limits.speculative_tokens, self.limits.max_model_len)
        return -(-tokens // self.limits.block_size)

    def fit(self, r: Request, hits: int, tokens: int) -> bool:
        """Whether all blocks that a request may need are still unreserved."""
        return self._promised + self._whole(r) <= self.kv.total and super().fit(r, hits, tokens)

    def start(self, r: Request, computed: int, now: float) -> None:
        """Reserve all blocks that a request may need."""
        super().start(r, computed, now)
        self._promised += self._whole(r)

    def remove(self, r: Request) -> None:
        """Cancel a request's reservation, too."""
        if r.status == RUNNING:
            self._promised -= self._whole(r)
        super().remove(r)


class StaticBatching(Orca):
    """A batch runs until its last request has ended; only then is the next one formed."""

    def _nobody_waits(self) -> bool:
        return bool(self.running) or super()._nobody_waits()

    def _admit_waiting(self, batch: Batch, budget: int, threshold: int, now: float, after_prefill: bool) -> None:
        if not self.running:
            super()._admit_waiting(batch, budget, threshold, now, after_prefill)
